package pgserver

import "errors"

func downloadDir() (string, error) { return "", errors.New("not yet") }
