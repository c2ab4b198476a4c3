package idempotency

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// exactByArithmetic is exactNumber by rational arithmetic, which costs as much as the exponent says: a mebibyte of 1e308
// would take seconds.
func exactByArithmetic(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	was, ok := new(big.Rat).SetString(text)
	is, okToo := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
	return ok && okToo && was.Cmp(is) == 0 && !(f == math.Trunc(f) && math.Abs(f) > 1<<53-1 && !strings.ContainsAny(text, "eE"))
}

// R9.
func TestExact_NumbersAreExactWhereArithmeticSaysSo(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 0))
	digits := func(most int) string {
		var b strings.Builder
		for range 1 + r.IntN(most) {
			b.WriteByte("0001234567899"[r.IntN(13)])
		}
		return b.String()
	}
	numbers := []string{"0", "-0", "0.0", "0e5", "1e308", "1e-307", "4.9e-324", "5e-324", "1e400", "1e-400", "100e-2", "0.10", "1.0E+2", "9007199254740993", "9007199254740993e0", "1" + strings.Repeat("0", 300)}
	for range 5000 {
		number := strings.TrimLeft(digits(20), "0")
		if number == "" {
			number = "0"
		}
		if r.IntN(2) == 0 {
			number += "." + digits(20)
		}
		if r.IntN(2) == 0 {
			number += []string{"e", "E", "e+", "e-"}[r.IntN(4)] + strconv.Itoa(r.IntN(330))
		}
		numbers = append(numbers, number, "-"+number)
	}
	exact := 0
	for _, number := range numbers {
		want := exactByArithmetic(number)
		if got := exactNumber(number); got != want {
			t.Errorf("%s: got %t, want %t (seed %d)", number, got, want, seed)
		}
		if want {
			exact++
		}
	}
	if exact < 100 || exact > len(numbers)-100 {
		t.Errorf("%d of %d numbers are exact", exact, len(numbers))
	}
}
