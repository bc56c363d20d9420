# The two main commands are `make run` and `make test`. Both install the programs they need through apt.
.DEFAULT_GOAL := help
.PHONY: help run test build install bench dataset

help:
	@echo "make run               back up, change, back up again and restore a disk image made from this machine's files"
	@echo "make run IMAGE=path    the same with your own disk image, which is only read"
	@echo "make test              install the programs that the tests need, then run every check and every test"
	@echo "make build             the copal binary: target/release/copal"
	@echo "make install           put it into ~/.cargo/bin"
	@echo "make bench SUITE=name  install the programs and data of the suite and run it; without SUITE, list the suites"
	@echo "make dataset DIR=path  build the small real data set (root, apt, about 10 GB)"

run:
	@bash scripts/install-deps.sh
	cargo build --locked --profile demo --package copal --package xtask
	"$${CARGO_TARGET_DIR:-target}/demo/xtask" demo $(if $(IMAGE),--image "$(IMAGE)")

test:
	@bash scripts/install-deps.sh
	@bash scripts/guest-kernel.sh
	@bash scripts/install-clients.sh
	cargo build --quiet --locked --workspace --bin xtask
	env $$(bash scripts/test-demands.sh) "$${CARGO_TARGET_DIR:-target}/debug/xtask" ci

build:
	@bash scripts/install-deps.sh
	cargo build --release --locked --package copal

install: build
	install -D -s -m 0755 target/release/copal "$${CARGO_HOME:-$$HOME/.cargo}/bin/copal"

bench:
	@bash scripts/install-deps.sh
	@bash scripts/guest-kernel.sh
	cargo xtask bench $(if $(SUITE),--prepare $(SUITE))

dataset:
	@bash scripts/install-deps.sh dataset
	cargo xtask dataset DIR=$(or $(DIR),.cache/dataset)
