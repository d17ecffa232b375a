module pinfold.dev

go 1.26.0
