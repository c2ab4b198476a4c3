package kafkago

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

var codecs = []compress.Compression{compress.None, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd}

// packed is a set of one batch as kafka-go writes it, with its first offset.
func packed(t testing.TB, codec compress.Compression, version int8, base int64, records ...protocol.Record) []byte {
	t.Helper()
	var b bytes.Buffer
	rs := protocol.RecordSet{Version: version, Attributes: protocol.Attributes(codec), Records: protocol.NewRecordReader(records...)}
	if _, err := rs.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	set := b.Bytes()[4:] // without its size
	for i := range 8 {
		set[i] = byte(base >> (56 - 8*i))
	}
	return set
}

func valued(values ...[]byte) []protocol.Record {
	records := make([]protocol.Record, len(values))
	for i, v := range values {
		records[i] = protocol.Record{Time: time.UnixMilli(1_700_000_000_000 + int64(i)), Key: protocol.NewBytes(fmt.Append(nil, "k", i)),
			Value: protocol.NewBytes(v), Headers: []protocol.Header{{Key: "ce_id", Value: fmt.Append(nil, i)}}}
	}
	return records
}

// pages reads a set page by page, from an offset on, as a group does.
func pages(t testing.TB, set []byte, offset, most int64) (all []source.Record, n int) {
	t.Helper()
	for tx := (&transactions{}); len(set) > 0; n++ {
		pg := newPage(source.TopicPartition{Topic: "orders", Partition: 3}, offset, most)
		rest, err := pg.readAll(set, tx)
		if err != nil {
			t.Fatal(err)
		}
		if pg.bytes > most && (len(pg.Records) != 1 || pg.Records[0].LeftOut == 0) {
			t.Fatalf("a page of %d bytes has %d", most, pg.bytes)
		}
		if len(rest) > 0 && pg.Next <= offset {
			t.Fatalf("a page of %d bytes from offset %d on comes no further", most, offset)
		}
		all, set, offset = append(all, pg.Records...), rest, pg.Next
	}
	return all, n
}

func TestBatch_BatchesOfEveryCodecAreReadPageByPage(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			var set []byte
			var want [][]byte
			for range 5 {
				var values [][]byte
				for range 20 {
					values = append(values, bytes.Repeat([]byte{byte(random.Uint32())}, random.IntN(2000)))
				}
				set = append(set, packed(t, codec, 2, int64(len(want)), valued(values...)...)...)
				want = append(want, values...)
			}
			for _, most := range []int64{100_000, 1 << 20} {
				for _, from := range []int64{0, 7, 99} {
					got, n := pages(t, set, from, most)
					if len(got) != len(want)-int(from) {
						t.Fatalf("%d records from %d on, want %d", len(got), from, len(want)-int(from))
					}
					for i, r := range got {
						if offset := from + int64(i); r.Offset != offset || !bytes.Equal(r.Value, want[offset]) || r.LeftOut != 0 || r.Time.IsZero() {
							t.Fatalf("record %d has offset %d and %d bytes, want %d", offset, r.Offset, len(r.Value), len(want[offset]))
						}
					}
					if most == 100_000 && from == 0 && n < 2 {
						t.Errorf("all came in one page of %d bytes", most)
					}
				}
			}
		})
	}
}

// A log that is older than Kafka 0.11 may begin with such messages. The consumer stops at the first, and says how to go past those that it has.
func TestBatch_MessagesFromBeforeKafka011AreRefused(t *testing.T) {
	t.Parallel()
	old := func(codec compress.Compression, format byte, offset int64, values ...[]byte) []byte {
		set := packed(t, codec, 1, offset, valued(values...)...)
		set[16] = format
		return set
	}
	text := bytes.Repeat([]byte("x"), 100)
	later := packed(t, compress.None, 2, 43, valued([]byte("three"))...)
	for name, set := range map[string][]byte{
		"format 0":         slices.Concat(old(compress.None, 0, 41, text), old(compress.None, 0, 42, text), later),
		"format 1":         slices.Concat(old(compress.None, 1, 41, text), old(compress.None, 1, 42, text), later),
		"format 1, packed": slices.Concat(old(kafka.Gzip, 1, 42, text, text), later), // The offset is that of the last message within.
		"at the end":       slices.Concat(old(compress.None, 1, 41, text), old(compress.None, 1, 42, text)),
		"one is cut off":   slices.Concat(old(compress.None, 1, 41, text), old(compress.None, 1, 42, text), old(compress.None, 1, 43, text)[:10]),
	} {
		t.Run(name, func(t *testing.T) {
			for at, c := range map[string]struct {
				next    int64
				records int
				read    func(pg *page) error
			}{
				"from memory": {43, 0, func(pg *page) error { _, err := pg.readAll(set, &transactions{}); return err }},
				"behind a batch": {43, 1, func(pg *page) error {
					_, err := pg.readAll(slices.Concat(packed(t, compress.None, 2, 40, valued([]byte("zero"))...), set), &transactions{})
					return err
				}},
				"as it comes": {1 + int64(binary.BigEndian.Uint64(set)), 0, func(pg *page) error {
					return pg.readFirst(&io.LimitedReader{R: bytes.NewReader(set), N: int64(len(set))}, &transactions{})
				}},
			} {
				pg := newPage(source.TopicPartition{Topic: "orders", Partition: 3}, 40, 1<<20)
				err := c.read(pg)
				var refused *source.TooLargeError
				if !errors.As(err, &refused) || refused.Next != c.next || refused.Needs != 0 || !strings.Contains(err.Error(), "a message of Kafka's format 0 or 1") {
					t.Errorf("%s: %v, %+v; want to go on at %d", at, err, refused, c.next)
				}
				if len(pg.Records) != c.records {
					t.Errorf("%s: %d records, want %d", at, len(pg.Records), c.records)
				}
			}
		})
	}
}

// A format that is none shows that the batch is damaged: nobody is told to go past it.
func TestBatch_AFormatThatIsNoneIsAnError(t *testing.T) {
	t.Parallel()
	set := packed(t, compress.None, 2, 41, valued([]byte("one"))...)
	set[16] = 3
	_, err := newPage(source.TopicPartition{Topic: "orders"}, 41, 1<<20).readAll(set, &transactions{})
	var refused *source.TooLargeError
	if err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "has the format 3") {
		t.Errorf("%v", err)
	}
}

// What a record unpacks to is never in memory, whatever its codec.
func TestBatch_ARecordThatUnpacksTo200MBIsLeftOut(t *testing.T) {
	skip.InShort(t, "it counts what the whole process does meanwhile")
	const size, most = 200 << 20, 2 << 20
	for _, codec := range codecs[1:] {
		t.Run(codec.String(), func(t *testing.T) {
			set := packed(t, codec, 2, 5, valued([]byte("before"), make([]byte, size), []byte("after"))...)
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, _ := pages(t, set, 5, most)
			runtime.ReadMemStats(&after)
			if len(got) != 3 || got[1].Value != nil || got[1].LeftOut < size || got[1].LeftOut > size+1000 || string(got[1].Key) != "k1" || string(got[1].Headers[0].Value) != "1" ||
				string(got[2].Value) != "after" || got[2].Offset != 7 {
				t.Errorf("%d records of the batch come", len(got))
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 40<<20 {
				t.Errorf("a batch of %d bytes packed took %d bytes of memory", len(set), took)
			}
		})
	}
}

func TestBatch_ManyRecordsThatUnpackTo200MBComeInPages(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	for _, codec := range codecs[1:] {
		t.Run(codec.String(), func(t *testing.T) {
			values := make([][]byte, 2000)
			for i := range values {
				values[i] = make([]byte, 100<<10)
			}
			set := packed(t, codec, 2, 0, valued(values...)...)
			offset, n, biggest := int64(0), 0, int64(0)
			for most, tx := int64(2<<20), (&transactions{}); len(set) > 0; n++ {
				pg := newPage(source.TopicPartition{Topic: "orders"}, offset, most)
				rest, err := pg.readAll(set, tx)
				if err != nil {
					t.Fatal(err)
				}
				biggest = max(biggest, pg.bytes)
				if set, offset, most = rest, pg.Next, 2<<20; pg.Wants > most { // as an inbox does
					most = min(pg.Wants, 32<<20)
				}
			}
			if offset != int64(len(values)) || biggest > 32<<20 || n > 20 {
				t.Errorf("%d of %d records came in %d pages of up to %d bytes", offset, len(values), n, biggest)
			}
		})
	}
}

func TestBatch_ABatchThatCannotBeUnpackedInPartsSaysSo(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	reframed := func(codec compress.Compression, pack func([]byte) []byte) []byte {
		plain := packed(t, compress.None, 2, 40, valued(make([]byte, 64<<20), []byte("x"))...)
		return resealed(append(bytes.Clone(plain[:batchHeader]), pack(plain[batchHeader:])...), codec)
	}
	for name, row := range map[string]struct {
		set   []byte
		needs bool
		says  string
	}{
		"one block of snappy, as librdkafka writes": {reframed(kafka.Snappy, func(b []byte) []byte { return snappy.Encode(nil, b) }), true, "a block of snappy has to be unpacked as a whole"},
		"a window of 64 MiB": {reframed(kafka.Zstd, func(b []byte) []byte {
			var out bytes.Buffer
			w, err := zstd.NewWriter(&out, zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(b)
			_ = w.Close()
			return out.Bytes()
		}), false, "publish with level 19"},
	} {
		t.Run(name, func(t *testing.T) {
			pg := newPage(source.TopicPartition{Topic: "orders", Partition: 3}, 40, 8<<20)
			_, err := pg.readAll(row.set, &transactions{})
			var large *source.TooLargeError
			if !errors.As(err, &large) || large.Next != 42 || (large.Needs > 64<<20) != row.needs {
				t.Fatalf("%v, %+v", err, large)
			}
			for _, part := range []string{"read orders/3 from offset 40 on", "offsets 40 to 41", fmt.Sprint(len(row.set), " bytes"), row.says} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("it does not say %q: %v", part, err)
				}
			}
		})
	}
}

// resealed is a batch with another codec and length, and its checksum.
func resealed(set []byte, codec compress.Compression) []byte {
	put := func(at int, v uint32) {
		for i := range 4 {
			set[at+i] = byte(v >> (24 - 8*i))
		}
	}
	put(8, uint32(len(set)-batchPrefix))
	set[22] = set[22]&^7 | byte(codec)
	put(17, crc32.Checksum(set[21:], castagnoli))
	return set
}

func TestBatch_ADamagedBatchIsAnError(t *testing.T) {
	t.Parallel()
	set := packed(t, kafka.Gzip, 2, 0, valued([]byte("one"), []byte("two"))...)
	set[len(set)-3]++
	pg := newPage(source.TopicPartition{Topic: "orders"}, 0, 1<<20)
	if _, err := pg.readAll(set, &transactions{}); err == nil || !strings.Contains(err.Error(), "damaged") || len(pg.Records) > 0 {
		t.Errorf("%v, and %d records", err, len(pg.Records))
	}
}

func TestBatch_ALengthThatNoRecordHasIsAnError(t *testing.T) {
	t.Parallel()
	for _, length := range []int64{math.MaxInt64, math.MaxInt32 + 1, -1} {
		set := packed(t, compress.None, 2, 0, valued([]byte("one"))...)
		set = resealed(append(binary.AppendVarint(set[:batchHeader:batchHeader], length), set[batchHeader+1:]...), compress.None)
		pg := newPage(source.TopicPartition{Topic: "orders"}, 0, 1<<20)
		if _, err := pg.readAll(set, &transactions{}); err == nil || len(pg.Records) > 0 {
			t.Errorf("a record of %d bytes: %v, and %d records", length, err, len(pg.Records))
		}
	}
}

// A record says that it has so many headers that their number, doubled or with what each costs, is none any more.
func TestBatch_ANumberOfHeadersThatNoRecordHasIsAnError(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{1 << 62, 1<<62 + 1, math.MaxInt64, 1 << 58, 1000} {
		record := append([]byte{0, 0, 0, 1, 1}, binary.AppendVarint(nil, n)...) // attributes, time and offset; neither key nor value
		set := packed(t, compress.None, 2, 0, valued([]byte("one"))...)
		set = resealed(append(binary.AppendVarint(set[:batchHeader:batchHeader], int64(len(record))), record...), compress.None)
		pg := newPage(source.TopicPartition{Topic: "orders"}, 0, 1<<20)
		if _, err := pg.readAll(set, &transactions{}); err == nil || len(pg.Records) > 0 {
			t.Errorf("%d headers: %v, and %d records", n, err, len(pg.Records))
		}
	}
}

// A handler may do with what it gets what it likes.
func TestBatch_WhatIsAddedToAPartOfARecordChangesNoOtherPart(t *testing.T) {
	t.Parallel()
	set := packed(t, compress.None, 2, 0, valued([]byte("one"), []byte("two"))...)
	all, _ := pages(t, set, 0, 1<<20)
	r := all[0]
	_, _, _ = append(r.Key, "!!!!!!!!"...), append(r.Value, "!!!!!!!!"...), append(r.Headers[0].Value, "!!!!!!!!"...)
	for i, r := range all {
		if string(r.Key) != fmt.Sprint("k", i) || string(r.Value) != []string{"one", "two"}[i] || len(r.Headers) != 1 || r.Headers[0].Key != "ce_id" || string(r.Headers[0].Value) != fmt.Sprint(i) {
			t.Errorf("record %d is %q", i, r)
		}
	}
}

// Whatever a producer packs, no page takes much more memory than it may have, and none panics.
func FuzzABatchTakesNoMoreThanItsBytes(f *testing.F) {
	for _, codec := range codecs {
		f.Add(packed(f, codec, 2, 3, valued([]byte("one"), make([]byte, 5000), nil)...), int64(3), uint8(codec))
		f.Add(packed(f, codec, 1, 3, valued([]byte("one"), make([]byte, 5000), nil)...), int64(3), uint8(codec))
	}
	f.Add([]byte("anoffset\xff\xff\xff\xff and a message of no length"), int64(0), uint8(0))
	f.Fuzz(func(t *testing.T, set []byte, offset int64, codec uint8) {
		if len(set) >= batchHeader && set[16] == 2 && sizeOfFirst(set) == int64(len(set)) {
			set = resealed(bytes.Clone(set), compress.Compression(codec%5))
		}
		const most = 64 << 10
		pg := newPage(source.TopicPartition{Topic: "orders"}, offset, most)
		rest, err := pg.readAll(set, &transactions{})
		sum := 0
		for _, r := range pg.Records {
			sum += len(r.Key) + len(r.Value)
		}
		if sum > most || len(rest) > len(set) || err != nil && len(rest) > 0 {
			t.Fatalf("%d bytes of %d records, %d bytes are left of %d, %v", sum, len(pg.Records), len(rest), len(set), err)
		}
	})
}
