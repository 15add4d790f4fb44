#!/bin/sh
# Links libhsa-runtime64.so.1 from the static library that cargo built, because a cdylib has no symbol versions.
#   link.sh STATIC_LIBRARY OUTPUT
set -eu
draft="$2.$$"
trap 'rm -f "$draft" "$draft.map"' EXIT
echo 'ROCR_1 { global: hsa_*; _amdgpu_r_debug; local: *; };' > "$draft.map"
# As AMD's runtime: it binds its own functions to itself, whatever is preloaded.
"${CC:-cc}" -shared -o "$draft" -Wl,-soname,libhsa-runtime64.so.1 -Wl,--version-script="$draft.map" -Wl,-Bsymbolic \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive -Wl,-z,nodelete -ldl -lpthread -lm -lgcc_s
mv "$draft" "$2"
