package wire

import (
	"encoding/base64"
	"strconv"
)

// The protocol and the journal are JSON, but not encoding/json's: that one costs
// an idle keeper 180 kB of private memory and the binary 0.6 MB, for reflection
// over a dozen types that are known. Each type instead lists its fields once, in
// a method named fields, and the coder that it is given either writes them or
// reads the one whose key has come. Strings are bytes: what is not UTF-8
// passes unchanged, so an argument that is none reaches the process as it is.

// fielder lists its fields to a coder.
type fielder interface{ fields(c *coder) }

// coder writes fields to out or, when in is set, reads the value of key from it.
type coder struct {
	out   []byte
	begun bool // out has a field already

	in  *parser
	key []byte
	hit bool // key was one of the fields
}

// encode appends v as a JSON object.
func encode(out []byte, v fielder) []byte {
	c := coder{out: append(out, '{')}
	v.fields(&c)
	return append(c.out, '}')
}

// decode reads v from the whole of b.
func decode(b []byte, v fielder) error {
	p := &parser{b: b}
	p.object(v)
	if p.space(); p.err == nil && p.i != len(p.b) {
		p.fail("something after the value")
	}
	return p.err
}

// field tells whether the value of a field is to be written or read now. always
// is false for one that is left out when it is zero.
func (c *coder) field(name string, always, zero bool) (read, write bool) {
	if c.in != nil {
		if c.hit || string(c.key) != name {
			return false, false
		}
		c.hit = true
		return !c.in.null(), false // null leaves the zero value, as in encoding/json
	}
	if zero && !always {
		return false, false
	}
	if c.begun {
		c.out = append(c.out, ',')
	}
	c.begun = true
	c.out = append(append(append(c.out, '"'), name...), '"', ':')
	return false, true
}

// How a field is treated when it is zero.
const (
	omit = false
	keep = true
)

func str[T ~string](c *coder, name string, v *T, always bool) {
	switch read, write := c.field(name, always, *v == ""); {
	case read:
		*v = T(c.in.str())
	case write:
		c.out = appendString(c.out, string(*v))
	}
}

func (c *coder) flag(name string, v *bool) {
	switch read, write := c.field(name, omit, !*v); {
	case read:
		*v = c.in.flag()
	case write:
		c.out = strconv.AppendBool(c.out, *v)
	}
}

func signed[T ~int | ~int64](c *coder, name string, v *T, always bool) {
	switch read, write := c.field(name, always, *v == 0); {
	case read:
		*v = T(c.in.signed())
	case write:
		c.out = strconv.AppendInt(c.out, int64(*v), 10)
	}
}

func unsigned[T ~uint32 | ~uint64](c *coder, name string, v *T, always bool) {
	switch read, write := c.field(name, always, *v == 0); {
	case read:
		*v = number[T](c.in)
	case write:
		c.out = strconv.AppendUint(c.out, uint64(*v), 10)
	}
}

func number[T ~uint32 | ~uint64](p *parser) T {
	n := p.unsigned()
	if uint64(T(n)) != n {
		p.fail("number too large")
	}
	return T(n)
}

// number is a whole number that may be missing.
func (c *coder) number(name string, v **int) {
	switch read, write := c.field(name, omit, *v == nil); {
	case read:
		n := int(c.in.signed())
		*v = &n
	case write:
		c.out = strconv.AppendInt(c.out, int64(**v), 10)
	}
}

// bytes are base64 in the JSON, as encoding/json has them.
func (c *coder) bytes(name string, v *[]byte) {
	switch read, write := c.field(name, omit, len(*v) == 0); {
	case read:
		text := c.in.quoted()
		out, err := base64.StdEncoding.AppendDecode(make([]byte, 0, len(text)/4*3), text)
		if err != nil {
			c.in.fail("no base64")
		}
		*v = out
	case write:
		c.out = append(base64.StdEncoding.AppendEncode(append(c.out, '"'), *v), '"')
	}
}

func (c *coder) strings(name string, v *[]string, always bool) {
	read, write := c.field(name, always, len(*v) == 0)
	if read {
		*v = []string{}
		c.in.list(func() { *v = append(*v, c.in.str()) })
	}
	if write {
		c.writeList(*v == nil, len(*v), func(i int) { c.out = appendString(c.out, (*v)[i]) })
	}
}

func (c *coder) numbers(name string, v *[]uint32) {
	read, write := c.field(name, omit, len(*v) == 0)
	if read {
		*v = []uint32{}
		c.in.list(func() { *v = append(*v, number[uint32](c.in)) })
	}
	if write {
		c.writeList(false, len(*v), func(i int) { c.out = strconv.AppendUint(c.out, uint64((*v)[i]), 10) })
	}
}

// pointer is P, a pointer to T that lists T's fields.
type pointer[T any] interface {
	*T
	fielder
}

// one is an object that may be missing.
func one[T any, P pointer[T]](c *coder, name string, v *P) {
	switch read, write := c.field(name, omit, *v == nil); {
	case read:
		*v = new(T)
		c.in.object(*v)
	case write:
		c.out = encode(c.out, *v)
	}
}

// object is one that is always there.
func (c *coder) object(name string, v fielder) {
	switch read, write := c.field(name, keep, false); {
	case read:
		c.in.object(v)
	case write:
		c.out = encode(c.out, v)
	}
}

// many is a list of objects.
func many[T any, P pointer[T]](c *coder, name string, v *[]T) {
	read, write := c.field(name, omit, len(*v) == 0)
	if read {
		*v = []T{}
		c.in.list(func() {
			var x T
			c.in.object(P(&x))
			*v = append(*v, x)
		})
	}
	if write {
		c.writeList(false, len(*v), func(i int) { c.out = encode(c.out, P(&(*v)[i])) })
	}
}

func (c *coder) writeList(null bool, n int, item func(i int)) {
	if null {
		c.out = append(c.out, "null"...)
		return
	}
	c.out = append(c.out, '[')
	for i := range n {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		item(i)
	}
	c.out = append(c.out, ']')
}

// appendString appends s quoted.
func appendString(out []byte, s string) []byte {
	const hex = "0123456789abcdef"
	out = append(out, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		out = append(out, s[from:i]...)
		from = i + 1
		if c < ' ' {
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else {
			out = append(out, '\\', c)
		}
	}
	return append(append(out, s[from:]...), '"')
}
