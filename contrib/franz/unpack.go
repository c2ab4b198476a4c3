package franz

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// unpacker unpacks the batches of one answer, to a bounded number of bytes in all: franz-go's own takes what a batch says, and a few
// kilobytes may unpack to a gigabyte.
type unpacker struct {
	left int64
	most int64
}

// zstdWindow is the largest window that a batch packed with zstd may need: that of level 19.
const zstdWindow = 8 << 20

// Decompress is for kgo.ProcessFetchPartition.
func (u *unpacker) Decompress(packed []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	var b []byte
	var err error
	switch codec {
	case kgo.CodecNone:
		return packed, nil
	case kgo.CodecGzip:
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(packed)); err == nil {
			b, err = u.read(r)
		}
	case kgo.CodecSnappy:
		b, err = u.snappy(packed)
	case kgo.CodecLz4:
		b, err = u.read(lz4.NewReader(bytes.NewReader(packed)))
	case kgo.CodecZstd:
		var r *zstd.Decoder
		if r, err = zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow)); err == nil {
			b, err = u.read(r)
			r.Close()
			if errors.Is(err, zstd.ErrWindowSizeExceeded) {
				err = &source.TooLargeError{Err: fmt.Errorf("it needs a window of more than %d MiB: publish with level 19 of zstd at most", zstdWindow>>20)}
			}
		}
	default:
		err = fmt.Errorf("a batch is packed with a codec of number %d, which this build does not know", codec)
	}
	if err != nil {
		return nil, err
	}
	u.left -= int64(len(b))
	return b, nil
}

// read reads all that there is, if it is not too much.
func (u *unpacker) read(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, u.left+1))
	if err == nil && int64(len(b)) > u.left {
		return nil, u.large(2 * u.most)
	}
	return b, err
}

// large says how many bytes a page would have to have. Half of what is unpacked are its records.
func (u *unpacker) large(unpacked int64) error {
	return &source.TooLargeError{Needs: unpacked, Err: fmt.Errorf("a batch unpacks to more than %d bytes: publish smaller batches", u.left)}
}

// xerial begins what Java packs with snappy: blocks, each after its length. Others pack a whole batch as one block.
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

func (u *unpacker) snappy(packed []byte) ([]byte, error) {
	if len(packed) < 16 || !bytes.HasPrefix(packed, xerial) {
		return u.block(nil, packed)
	}
	var all []byte
	for rest := packed[16:]; len(rest) > 0; {
		if len(rest) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := int(uint32(int32FromBytes(rest)))
		if n > len(rest)-4 {
			return nil, io.ErrUnexpectedEOF
		}
		var err error
		if all, err = u.block(all, rest[4:4+n]); err != nil {
			return nil, err
		}
		rest = rest[4+n:]
	}
	return all, nil
}

// block appends an unpacked block.
func (u *unpacker) block(all, packed []byte) ([]byte, error) {
	n, err := snappy.DecodedLen(packed)
	if err != nil {
		return nil, err
	}
	if int64(len(all)+n) > u.left {
		return nil, u.large(max(2*u.most, int64(len(all)+n)))
	}
	b, err := snappy.Decode(nil, packed)
	if err != nil {
		return nil, err
	}
	if all == nil {
		return b, nil
	}
	return append(all, b...), nil
}
