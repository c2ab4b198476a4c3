package kafkago

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file unpacks batches as they are read. The codecs of kafka-go serve where they need a bounded amount of memory. Its zstd
// takes a window of up to 512 MiB, and its snappy whatever size a block names.

// zstdWindow is the largest window that a batch packed with zstd may need: that of level 19.
const zstdWindow = 8 << 20

var zstdReaders sync.Pool

// unpack returns a reader of the records of a batch, and a function to call when it is done with.
func unpack(h batch, packed io.Reader, most int64) (io.Reader, func(), error) {
	codec := h.attributes.Compression()
	switch codec {
	case compress.None:
		return packed, func() {}, nil
	case kafka.Gzip, kafka.Lz4:
		r := codec.Codec().NewReader(packed)
		return r, func() { _ = r.Close() }, nil
	case kafka.Snappy:
		return &snappyReader{r: packed, most: most}, func() {}, nil
	case kafka.Zstd:
		z, _ := zstdReaders.Get().(*zstd.Decoder)
		if z == nil {
			var err error
			if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow)); err != nil {
				return nil, nil, err
			}
		}
		if err := z.Reset(onlyReader{packed}); err != nil {
			return nil, nil, err
		}
		return z, func() {
			if z.Reset(nil) == nil {
				zstdReaders.Put(z)
			}
		}, nil
	default:
		return nil, nil, fmt.Errorf("the batch at offset %d is packed with a codec of number %d, which this build does not know", h.base, codec)
	}
}

// onlyReader hides a reader's other methods, with which zstd would unpack all at once.
type onlyReader struct{ io.Reader }

// unpackingError says of which batch an error is, and makes one of a window that is too large a TooLargeError.
func unpackingError(h batch, err error) error {
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = &source.TooLargeError{Err: fmt.Errorf("it needs a window of more than %d MiB: publish with level 19 of zstd at most", zstdWindow>>20)}
	}
	var large *source.TooLargeError
	if errors.As(err, &large) {
		large.Next = h.last + 1
	}
	return fmt.Errorf("unpack the batch of offsets %d to %d, of %d bytes: %w", h.base, h.last, h.size, err)
}

// xerial begins what Java packs with snappy: blocks, each after its length. librdkafka packs a whole batch as one block.
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

// snappyReader unpacks block by block. A block has to be in memory as a whole, packed and unpacked.
type snappyReader struct {
	r      io.Reader
	most   int64
	begun  bool
	whole  bool // one block without a frame
	packed []byte
	block  []byte // the whole buffer
	left   []byte // of block
}

func (s *snappyReader) Read(b []byte) (int, error) {
	for len(s.left) == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.left)
	s.left = s.left[n:]
	return n, nil
}

// next unpacks the next block.
func (s *snappyReader) next() error {
	if !s.begun {
		s.begun = true
		header := make([]byte, 16)
		n, err := io.ReadFull(s.r, header)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if n < len(header) || !bytes.Equal(header[:len(xerial)], xerial) {
			s.whole = true
			rest, err := io.ReadAll(io.LimitReader(s.r, s.most))
			if err != nil {
				return err
			}
			if int64(len(rest)) == s.most {
				return s.large(2 * s.most)
			}
			return s.decode(append(header[:n], rest...))
		}
	}
	if s.whole {
		return io.EOF
	}
	var size [4]byte
	if _, err := io.ReadFull(s.r, size[:]); err != nil {
		return err
	}
	n := int64(binary.BigEndian.Uint32(size[:]))
	if n > s.most {
		return s.large(2 * n)
	}
	if int64(cap(s.packed)) < n {
		s.packed = make([]byte, n)
	}
	s.packed = s.packed[:n]
	if _, err := io.ReadFull(s.r, s.packed); err != nil {
		return noEOF(err)
	}
	return s.decode(s.packed)
}

func (s *snappyReader) decode(packed []byte) error {
	n, err := snappy.DecodedLen(packed)
	if err != nil {
		return err
	}
	if 2*int64(n) > s.most && n > 1<<20 { // Its records are copied out of it.
		return s.large(2 * int64(n))
	}
	s.block, err = snappy.Decode(s.block[:cap(s.block)], packed)
	s.left = s.block
	return err
}

func (s *snappyReader) large(needs int64) error {
	return &source.TooLargeError{Needs: needs, Err: fmt.Errorf("a block of snappy has to be unpacked as a whole: that takes %d bytes at least, and there are %d: "+
		"publish smaller batches or with another codec", needs, s.most)}
}
