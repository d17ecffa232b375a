package pid1

// parser reads the command line.
type parser struct {
	argv list
	i    int    // the word that is read
	bad  string // the word that is to blame
	of   *flag  // whose value it is, or nil
	o    *options
}

// parse reads argv and the environment into o. For what is not verdictRun it says
// whose fault it is: a word, and the option whose value that is, if it is one.
func parse(o *options, argv, envp list) (v verdict, bad string, of *flag) {
	o.defaults(personaOf(str(argv.at(0))), envp)
	if argv.at(0) == nil || argv.at(1) == nil {
		return verdictUsage, "", nil
	}
	if o.as == asSelf && isMode(str(argv.at(1))) {
		return verdictMode, "", nil
	}
	p := parser{argv: argv, i: 1, o: o}
	for ; ; p.i++ {
		w := str(argv.at(p.i))
		if w == "--" {
			p.i++
			break
		}
		if len(w) < 2 || w[0] != '-' {
			break
		}
		if w[1] == '-' {
			v = p.long(w[2:])
		} else {
			v = p.short(w)
		}
		if v != verdictRun {
			return v, p.bad, p.of
		}
	}
	for s := sigTSTP; o.as == asDumb && o.session && s <= sigTTOU; s++ {
		if o.rewrote>>s&1 == 0 {
			o.rewrite[s] = sigSTOP
		}
	}
	o.command = argv.from(p.i)
	if argv.at(p.i) == nil && !o.pause {
		return verdictUsage, "", nil
	}
	if o.pause && o.serve {
		return verdictArgument, "--pause with --serve", nil
	}
	return verdictRun, "", nil
}

func (o *options) defaults(as persona, envp list) {
	*o = options{as: as, verbosity: 1, grace: defaultGrace, serveBound: serviceBound}
	for s := range o.rewrite {
		o.rewrite[s] = int8(s)
	}
	switch as {
	case asDumb:
		o.session, o.group, o.verbosity = true, true, 0
		if v, _ := envp.env("DUMB_INIT_DEBUG"); v == "1" {
			o.verbosity = 3
		}
		if v, _ := envp.env("DUMB_INIT_SETSID"); v == "0" {
			o.session, o.group, o.noGroup = false, false, true
		}
	case asCatatonit:
		o.subreaper = true
		if _, ok := envp.env("CATATONIT_DEBUG"); ok {
			o.verbosity = 3
		}
	default:
		_, o.subreaper = envp.env("TINI_SUBREAPER")
		_, o.group = envp.env("TINI_KILL_PROCESS_GROUP")
		v, _ := envp.env("TINI_VERBOSITY")
		if n, ok := number(v, 100); ok {
			o.verbosity = n
		}
	}
}

func (p *parser) blame(v verdict, word string) verdict {
	p.bad = word
	return v
}

// long reads an option without its dashes.
func (p *parser) long(w string) verdict {
	name, value, has := w, "", false
	for i := 0; i < len(w); i++ {
		if w[i] == '=' {
			name, value, has = w[:i], w[i+1:], true
			break
		}
	}
	for i := range flags {
		f := &flags[i]
		if f.of&p.o.as == 0 || f.long != name || name == "" {
			continue
		}
		if p.o.as == asTini && (p.i != 1 || p.argv.at(2) != nil) {
			break // its --version is one only when it is alone
		}
		switch {
		case f.takes == nothing && has:
			return p.blame(verdictArgument, str(p.argv.at(p.i)))
		case f.takes == argument && !has:
			return p.next(f)
		}
		return p.apply(f, value, has)
	}
	return p.blame(verdictUnknown, str(p.argv.at(p.i)))
}

// next has the next word for an argument.
func (p *parser) next(f *flag) verdict {
	if p.argv.at(p.i+1) == nil {
		return p.blame(verdictArgument, str(p.argv.at(p.i)))
	}
	p.i++
	return p.apply(f, str(p.argv.at(p.i)), true)
}

// short reads a word of one-letter options.
func (p *parser) short(w string) verdict {
	for j := 1; j < len(w); j++ {
		f := p.letter(w[j])
		switch {
		case f == nil:
			return p.blame(verdictUnknown, w)
		case f.takes != argument:
			if v := p.apply(f, "", false); v != verdictRun {
				return v
			}
		case j+1 < len(w):
			return p.apply(f, w[j+1:], true)
		default:
			return p.next(f)
		}
	}
	return verdictRun
}

func (p *parser) letter(c byte) *flag {
	for i := range flags {
		if f := &flags[i]; f.short == c && f.of&p.o.as != 0 {
			return f
		}
	}
	return nil
}

// apply sets what an option means.
func (p *parser) apply(f *flag, value string, has bool) verdict {
	o, ok := p.o, true
	switch f.id {
	case flHelp:
		return verdictHelp
	case flVersion:
		return verdictVersion
	case flLicense:
		return verdictLicense
	case flVerbose:
		if o.verbosity++; o.as == asDumb {
			o.verbosity = 3
		}
	case flQuiet:
		o.verbosity = 0
	case flGroup:
		o.group = true
	case flSession:
		o.session, o.noGroup = true, false
	case flNoGroup:
		o.noGroup, o.session, o.group = true, false, false
	case flSubreaper:
		o.subreaper = true
	case flReaps:
		o.tellReaps = true
	case flPause:
		o.pause = true
	case flKillCgroup:
		o.killCgroup = true
	case flCgroupRW:
		o.cgroupRW = true
	case flServe:
		if o.serve, o.killRest = true, true; has {
			o.serveProgram, ok = p.text(value), value != ""
		}
	case flServeOptional:
		o.serveOptional = true
	case flOnStart:
		o.onStart = p.text(value)
	case flOnStop:
		o.onStop = p.text(value)
	case flStatus:
		o.status, ok = p.text(value), len(value) > 1 && value[0] == '/' && len(value) < 4000
	default:
		ok = o.setValue(f.id, value, has)
	}
	if !ok {
		p.of = f
		return p.blame(verdictArgument, value)
	}
	return verdictRun
}

// text is a value as the kernel has it: all values end where their word does.
func (p *parser) text(value string) *byte {
	w := p.argv.at(p.i)
	return at(w, len(str(w))-len(value))
}

func (o *options) setValue(id flagID, value string, has bool) (ok bool) {
	switch id {
	case flPdeath:
		o.pdeath, ok = signalOf(value)
		return ok && o.pdeath > 0
	case flStopSignal:
		o.stopSignal, ok = signalOf(value)
		return ok && o.stopSignal > 0
	case flOK:
		n, ok := number(value, 255)
		o.ok[n>>6&3] |= 1 << (n & 63)
		return ok
	case flRewrite:
		return o.setRewrite(value)
	case flKillRest:
		o.killRest = true
		if has {
			o.grace, ok = duration(value)
		}
		return ok || !has
	case flWaitOrphans:
		o.waitOrphans = true
		if has {
			o.waitMost, ok = duration(value)
		}
		return ok || !has
	case flServeBound:
		o.serveBound, ok = duration(value)
		return ok && o.serveBound > 0
	case flStopGrace:
		o.stopGrace, ok = duration(value)
		return ok && o.stopGrace > 0
	}
	return false
}

// setRewrite reads FROM:TO. dumb-init has numbers up to 31.
func (o *options) setRewrite(value string) bool {
	for i := 0; i < len(value); i++ {
		if value[i] != ':' {
			continue
		}
		from, ok := signalOf(value[:i])
		to, ok2 := signalOf(value[i+1:])
		if !ok || !ok2 || from < 1 {
			return false
		}
		if _, plain := number(value[i+1:], 31); o.as == asDumb && (from > 31 || !plain) {
			return false
		}
		o.rewrite[uint(from)%(sigMax+1)] = int8(to)
		o.rewrote |= 1 << (from & 63)
		return true
	}
	return false
}
