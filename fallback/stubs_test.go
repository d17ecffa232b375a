package fallback

func reuseInLab(l *room) (any, error)     { return nil, nil }
func historiesInLab(l *room) (any, error) { return nil, nil }
