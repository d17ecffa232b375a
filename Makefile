# Pinfold. "make" alone lists what there is to make.

GO      ?= go
PREFIX  ?= /usr/local
# VERSION=1.2.3 names a release; else the sources say.
VERSION ?=
LDFLAGS ?= -s -w $(if $(VERSION),-X main.version=$(VERSION))

# pinfold-init begins there, before the Go runtime (reaper/pid1). Without this it
# works as well, as an init only slower and not from its first instruction on.
EARLY = -E pinfold.dev/reaper/pid1.early

# The packages that say what a process is: they build everywhere.
identity = ./api ./pidfd ./fallback/... ./internal/sys

.PHONY: help build man test test-quick lint bench demo install clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/pinfold and bin/pinfold-init
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/pinfold
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS) $(EARLY)' -o bin/ ./cmd/pinfold-init

man: ## write the man pages to bin/man
	$(GO) run -tags man ./cmd/pinfold man bin/man

test: ## run all tests; as root, which most need: installs what is missing
	@scripts/test.sh all

test-quick: ## run the tests that need neither root nor a test bed
	@scripts/test.sh quick

lint: ## gofmt, vet, staticcheck, and build the identity packages elsewhere
	@files=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
		[ -z "$$files" ] || { echo "gofmt these:" $$files; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	@for p in darwin/arm64 freebsd/amd64 windows/amd64; do \
		echo "$$p: go vet $(identity)"; GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) vet $(identity) || exit 1; done
	@for p in darwin/amd64 darwin/arm64 freebsd/amd64; do \
		echo "$$p: go test -c ./fallback/token"; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o /dev/null ./fallback/token || exit 1; done

bench: build ## measure against the budget; BENCHFLAGS=-list tells more
	$(GO) run ./integration/bench -bin bin $(BENCHFLAGS)

demo: ## show a turn held and ended, with proof; installs what is missing
	@scripts/deps.sh demo
	@$(MAKE) --no-print-directory build
	@examples/demo/demo.sh

install: build man ## install below PREFIX (/usr/local), honours DESTDIR
	install -D -m 755 bin/pinfold $(DESTDIR)$(PREFIX)/bin/pinfold
	install -D -m 755 bin/pinfold-init $(DESTDIR)$(PREFIX)/libexec/pinfold/pinfold-init
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 bin/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	for u in system user; do \
		install -d $(DESTDIR)$(PREFIX)/lib/systemd/$$u && \
		sed 's|/usr/bin/pinfold|$(PREFIX)/bin/pinfold|g' packaging/systemd/$$u/pinfold.service \
			>$(DESTDIR)$(PREFIX)/lib/systemd/$$u/pinfold.service && \
		install -m 644 packaging/systemd/$$u/pinfold.socket $(DESTDIR)$(PREFIX)/lib/systemd/$$u/ || exit 1; done

clean: ## remove what was built here
	rm -rf bin
