package inbox

const deadlyChild = "HOLDFAST_TEST_DEADLY_CHILD"

func runDeadlyChild() {}
