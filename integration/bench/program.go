package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// The programs that are launched are a few instructions each, so that what is
// measured is the launching and the ending, not a libc or a runtime. Whoever is
// compared runs the same file.

// code is the machine code of the programs on one architecture.
type code struct {
	machine uint16 // e_machine of elf(5)
	exit    []byte
	drink   []byte           // reads stdin to its end
	pause   []byte           // for ever
	herd    func(int) []byte // forks so often, then all pause
	bomb    []byte           // forks for ever, and so does each child
}

func amd64() code {
	pause := []byte{0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7} // mov eax,pause; syscall; jmp
	fork := []byte{0xb8, 57, 0, 0, 0, 0x0f, 0x05}              // mov eax,fork; syscall
	return code{
		machine: 62,
		exit:    []byte{0x31, 0xff, 0xb8, 231, 0, 0, 0, 0x0f, 0x05}, // xor edi,edi; mov eax,exit_group; syscall
		drink: []byte{0x48, 0x81, 0xec, 0, 0x10, 0, 0, // sub rsp,4096
			0x31, 0xff, 0x48, 0x89, 0xe6, 0xba, 0, 0x10, 0, 0, // xor edi,edi; mov rsi,rsp; mov edx,4096
			0x31, 0xc0, 0x0f, 0x05, 0x85, 0xc0, 0x7f, 0xee, // xor eax,eax; syscall; test eax,eax; jg xor
			0x31, 0xff, 0xb8, 231, 0, 0, 0, 0x0f, 0x05},
		pause: pause,
		herd: func(n int) []byte {
			b := binary.LittleEndian.AppendUint32([]byte{0xbb}, uint32(n)) // mov ebx,n
			b = append(b, fork...)
			b = append(b, 0x85, 0xc0, 0x74, 0x04, 0xff, 0xcb, 0x75, 0xf1) // test eax,eax; jz pause; dec ebx; jnz fork
			return append(b, pause...)
		},
		bomb: append(fork[:len(fork):len(fork)], 0xeb, 0xf7), // jmp fork
	}
}

func arm64() code {
	word := func(ws ...uint32) (b []byte) {
		for _, w := range ws {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	movz := func(reg, imm uint32) uint32 { return 0xd2800000 | imm<<5 | reg }
	zero := word(movz(1, 0), movz(2, 0), movz(3, 0), movz(4, 0))
	const svc = 0xd4000001
	jump := func(words int32) uint32 { return 0x14000000 | uint32(words)&0x3ffffff }
	pause := append(append(word(movz(0, 0)), zero...), word(movz(8, 73), svc, jump(-7))...) // ppoll
	fork := append(append(word(movz(0, 17)), zero...), word(movz(8, 220), svc)...)          // clone(SIGCHLD)
	return code{
		machine: 183,
		exit:    word(movz(0, 0), movz(8, 94), svc),
		drink: word(0xd14007ff, // sub sp, sp, #4096
			movz(0, 0), 0x910003e1, movz(2, 4096), movz(8, 63), svc, // read(0, sp, 4096)
			0xf100001f, 0x54000000|uint32(0x7ffff&-6)<<5|12, // cmp x0, #0; b.gt movz
			movz(0, 0), movz(8, 94), svc),
		pause: pause,
		herd: func(n int) []byte {
			b := append(word(movz(19, uint32(n))), fork...)
			b = append(b, word(0xb4000000|3<<5, 0xd1000673, 0xb5000000|uint32(0x7ffff&-9)<<5|19)...) // cbz x0; sub x19; cbnz x19
			return append(b, pause...)
		},
		bomb: append(fork[:len(fork):len(fork)], word(jump(-7))...),
	}
}

// programs are executables in a directory.
type programs struct {
	dir  string
	code code
}

func newPrograms(dir string) (*programs, error) {
	p := &programs{dir: dir}
	switch runtime.GOARCH {
	case "amd64":
		p.code = amd64()
	case "arm64":
		p.code = arm64()
	default:
		return nil, fmt.Errorf("no programs for %s yet", runtime.GOARCH)
	}
	return p, nil
}

func (p *programs) exit() (string, error)  { return p.write("exit", p.code.exit) }
func (p *programs) drink() (string, error) { return p.write("drink", p.code.drink) }
func (p *programs) bomb() (string, error)  { return p.write("bomb", p.code.bomb) }

// herd is a program that becomes n processes, which wait for their end.
func (p *programs) herd(n int) (string, error) {
	if n == 1 {
		return p.write("pause", p.code.pause)
	}
	return p.write(fmt.Sprintf("herd-%d", n), p.code.herd(n-1))
}

// write makes a static executable: a header, one segment, the code.
func (p *programs) write(name string, text []byte) (string, error) {
	const base, head = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, p.code.machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+head) // entry
	b = le.AppendUint64(b, 64)        // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, h := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, h)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // readable, executable
	size := uint64(head + len(text))
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	path := filepath.Join(p.dir, name)
	return path, os.WriteFile(path, append(b, text...), 0o755)
}
