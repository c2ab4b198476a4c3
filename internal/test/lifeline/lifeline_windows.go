package lifeline

// There is no Attach on Windows: a program that is killed there leaves behind what it started.
