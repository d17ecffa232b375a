package wire

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep values nest, also those that are passed over.
const maxDepth = 32

// parser reads JSON. The first error stays, and ends everything.
type parser struct {
	b     []byte
	i     int
	depth int
	err   error
}

// syntaxError is an error of parser.
type syntaxError struct {
	what string
	at   int
}

func (e *syntaxError) Error() string { return e.what + " at byte " + strconv.Itoa(e.at) }

func (p *parser) fail(what string) {
	if p.err == nil {
		p.err = &syntaxError{what, p.i}
	}
	p.i = len(p.b)
}

func (p *parser) space() {
	for p.i < len(p.b) && (p.b[p.i] == ' ' || p.b[p.i] == '\n' || p.b[p.i] == '\t' || p.b[p.i] == '\r') {
		p.i++
	}
}

// peek is the next byte that is no space, or 0.
func (p *parser) peek() byte {
	if p.space(); p.i < len(p.b) {
		return p.b[p.i]
	}
	return 0
}

// eat takes c if it comes next.
func (p *parser) eat(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.i++
	return true
}

func (p *parser) want(c byte) {
	if !p.eat(c) {
		p.fail("no " + string(rune(c)))
	}
}

// word takes a word if it comes next.
func (p *parser) word(w string) bool {
	p.space()
	if !bytes.HasPrefix(p.b[p.i:], []byte(w)) {
		return false
	}
	p.i += len(w)
	return true
}

func (p *parser) null() bool { return p.word("null") }

func (p *parser) flag() bool {
	switch {
	case p.word("true"):
		return true
	case p.word("false"):
	default:
		p.fail("no truth value")
	}
	return false
}

// each takes what is between two brackets.
func (p *parser) each(from, to byte, item func()) {
	if p.depth++; p.depth > maxDepth {
		p.fail("nested too deep")
	}
	p.want(from)
	if !p.eat(to) {
		for p.err == nil {
			item()
			if p.err != nil || p.eat(to) {
				break
			}
			p.want(',')
		}
	}
	p.depth--
}

func (p *parser) list(item func()) { p.each('[', ']', item) }

// object reads the fields of v. Others are passed over: they are a newer
// version's.
func (p *parser) object(v fielder) {
	p.each('{', '}', func() {
		c := coder{in: p, key: p.quoted()}
		if p.want(':'); p.err != nil {
			return
		}
		if v.fields(&c); !c.hit {
			p.skip()
		}
	})
}

// skip passes over a value.
func (p *parser) skip() {
	switch c := p.peek(); {
	case c == '{':
		p.each('{', '}', func() {
			p.quoted()
			p.want(':')
			p.skip()
		})
	case c == '[':
		p.list(p.skip)
	case c == '"':
		p.quoted()
	case c == '-' || c >= '0' && c <= '9':
		for p.i < len(p.b) && bytes.IndexByte([]byte("+-.0123456789Ee"), p.b[p.i]) >= 0 {
			p.i++
		}
	default:
		if !p.null() {
			p.flag()
		}
	}
}

// digits takes an integer's digits.
func (p *parser) digits() (n uint64) {
	from := p.i
	for ; p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9'; p.i++ {
		d := uint64(p.b[p.i] - '0')
		if n > (1<<64-1-d)/10 {
			p.fail("number too large")
			return 0
		}
		n = n*10 + d
	}
	switch {
	case p.i == from:
		p.fail("no number")
	case p.b[from] == '0' && p.i > from+1:
		p.fail("number with a leading zero")
	case p.i < len(p.b) && (p.b[p.i] == '.' || p.b[p.i]|0x20 == 'e'):
		p.fail("no whole number")
	}
	return n
}

func (p *parser) unsigned() uint64 {
	p.space()
	return p.digits()
}

func (p *parser) signed() int64 {
	minus := p.eat('-')
	n := p.digits()
	switch {
	case minus && n <= 1<<63:
		return -int64(n)
	case !minus && n < 1<<63:
		return int64(n)
	}
	p.fail("number too large")
	return 0
}

func (p *parser) str() string { return string(p.quoted()) }

// quoted takes a string. What it returns may be part of the input.
func (p *parser) quoted() []byte {
	if p.want('"'); p.err != nil {
		return nil
	}
	from := p.i
	for ; p.i < len(p.b); p.i++ {
		switch c := p.b[p.i]; {
		case c == '"':
			p.i++
			return p.b[from : p.i-1]
		case c == '\\':
			return p.escaped(bytes.Clone(p.b[from:p.i]))
		case c < ' ':
			p.fail("control character in a string")
		}
	}
	p.fail("string without an end")
	return nil
}

// escaped takes the rest of a string from its first escape on.
func (p *parser) escaped(s []byte) []byte {
	for p.i < len(p.b) {
		c := p.b[p.i]
		p.i++
		switch {
		case c == '"':
			return s
		case c == '\\':
			s = p.escape(s)
		case c < ' ':
			p.fail("control character in a string")
		default:
			s = append(s, c)
		}
	}
	p.fail("string without an end")
	return nil
}

// escape takes what follows a backslash.
func (p *parser) escape(s []byte) []byte {
	if p.i == len(p.b) {
		return s
	}
	c := p.b[p.i]
	p.i++
	switch c {
	case '"', '\\', '/':
		return append(s, c)
	case 'b':
		return append(s, '\b')
	case 'f':
		return append(s, '\f')
	case 'n':
		return append(s, '\n')
	case 'r':
		return append(s, '\r')
	case 't':
		return append(s, '\t')
	case 'u':
		return utf8.AppendRune(s, p.codepoint())
	}
	p.fail("unknown escape")
	return s
}

// codepoint takes the digits of \u, and a second one that makes a pair with it.
func (p *parser) codepoint() rune {
	r := p.hex()
	if !utf16.IsSurrogate(r) || !bytes.HasPrefix(p.b[p.i:], []byte(`\u`)) {
		return r
	}
	back := p.i
	p.i += 2
	if pair := utf16.DecodeRune(r, p.hex()); pair != utf8.RuneError {
		return pair
	}
	if p.err == nil {
		p.i = back
	}
	return r // half a pair becomes U+FFFD
}

func (p *parser) hex() (r rune) {
	if len(p.b)-p.i < 4 {
		p.fail("short escape")
		return 0
	}
	for range 4 {
		c := p.b[p.i]
		p.i++
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			p.fail("bad escape")
			return 0
		}
		r = r<<4 | rune(c)
	}
	return r
}
