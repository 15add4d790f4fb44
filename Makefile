# Builds and installs XSched. `cargo` does the building; this lays out what it made.
#
#   make                          builds
#   sudo make install             installs below PREFIX, /usr/local unless given
#   sudo make uninstall           removes every file that was installed, with the same PREFIX
#   make deb                      a Debian package in target/
#   make wheel                    a Python wheel in target/wheels
PREFIX ?= /usr/local
DESTDIR ?=
PROFILE ?= release
CARGO ?= cargo
CARGO_TARGET_DIR ?= target
export PREFIX DESTDIR PROFILE CARGO CARGO_TARGET_DIR

.PHONY: build install uninstall deb wheel
build:
	$(CARGO) build --locked --profile $(PROFILE:debug=dev) -p xsched -p xsched-lib

# Builds nothing, so that root's part is to copy files.
install:
	packaging/install

uninstall:
	packaging/uninstall

deb: build
	packaging/deb

wheel:
	python3 python/build_wheel.py --profile $(PROFILE)
