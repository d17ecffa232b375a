package turns

func playPeer(words []string) int    { return 2 }
func playSeccomp(words []string) int { return 2 }
