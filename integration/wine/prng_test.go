package wine

import "encoding/binary"

// forwarder lays out a Windows library for amd64 that has one function, which
// the loader finds in another library: to is LIBRARY.FUNCTION. Programs of Go
// want ProcessPrng of bcryptprimitives.dll to start, which Wine has from 9 on; the
// generator that it stands for, SystemFunction036 of advapi32.dll, every Wine has.
//
// The layout is that of Microsoft's "PE Format": the headers, then one section
// that holds an export directory and its strings.
func forwarder(library, function, to string) []byte {
	const (
		file   = 0x200     // alignment in the file, and the size of headers and section
		memory = 0x1000    // alignment in memory, and where the section is there
		pe     = 0x40      // the signature
		coff   = pe + 4    // IMAGE_FILE_HEADER
		opt    = coff + 20 // IMAGE_OPTIONAL_HEADER64
		dirs   = opt + 112 // 16 data directories
		sect   = dirs + 16*8
		dir    = file // IMAGE_EXPORT_DIRECTORY
	)
	b := make([]byte, 2*file)
	put := func(at int, v any) {
		if _, err := binary.Encode(b[at:], binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	at := func(offset int) uint32 { return uint32(offset - file + memory) } // in memory

	copy(b, "MZ")
	put(0x3c, uint32(pe))
	copy(b[pe:], "PE\x00\x00")
	put(coff, []uint16{0x8664, 1})                      // amd64, one section
	put(coff+16, []uint16{sect - opt, 0x2022})          // executable, large addresses, DLL
	put(opt, uint16(0x20b))                             // PE32+
	put(opt+24, uint64(0x180000000))                    // ImageBase
	put(opt+32, []uint32{memory, file})                 // alignments
	put(opt+40, []uint16{6, 0, 0, 0, 6, 0})             // versions: of system, image, subsystem
	put(opt+56, []uint32{2 * memory, file})             // SizeOfImage, SizeOfHeaders
	put(opt+68, []uint16{3, 0x160})                     // console; may be anywhere
	put(opt+72, []uint64{1 << 20, 4096, 1 << 20, 4096}) // stack and heap
	put(opt+108, uint32(16))                            // NumberOfRvaAndSizes
	put(dirs, []uint32{memory, file})                   // the export directory is the section
	copy(b[sect:], ".edata")
	put(sect+8, []uint32{file, memory, file, file})
	put(sect+36, uint32(0x40000040)) // readable, initialised data

	put(dir+16, []uint32{1, 1, 1, at(dir + 40), at(dir + 44), at(dir + 48)}) // base, counts, three tables
	text := dir + 50
	for _, s := range []struct {
		pointer int
		text    string
	}{{dir + 12, library}, {dir + 40, to}, {dir + 44, function}} {
		put(s.pointer, at(text))
		text += copy(b[text:], s.text) + 1
	}
	return b
}
