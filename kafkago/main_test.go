package kafkago

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/kafkatest"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, kafkatest.Stop)) }
