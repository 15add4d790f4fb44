# Builds XSched with cargo, and installs it.
#
#   make                          builds
#   sudo make install             installs below PREFIX (default /usr/local)
#   sudo make uninstall           removes every file that was installed, with the same PREFIX
#   make deb                      builds a Debian package in target/
#   make wheel                    builds a Python wheel in target/wheels
#   make release                  builds all of them, the container image, a bill of materials and checksums in target/dist
PREFIX ?= /usr/local
DESTDIR ?=
PROFILE ?= release
CARGO ?= cargo
CARGO_TARGET_DIR ?= target
export PREFIX DESTDIR PROFILE CARGO CARGO_TARGET_DIR

.PHONY: build install uninstall deb wheel release
build:
	$(CARGO) build --locked --profile $(PROFILE:debug=dev) -p xsched -p xsched-lib

# Does not build, so that root only copies files.
install:
	packaging/install

uninstall:
	packaging/uninstall

deb: build
	packaging/deb

wheel:
	python3 python/build_wheel.py --profile $(PROFILE)

release:
	packaging/release --profile $(PROFILE)
