#!/bin/sh
# Builds the program and its libraries.
#   build.sh OUTPUT RUNTIME [LIBRARY...]                 with the host's compiler, for the stand-in RUNTIME (libamdhip64.so.6)
#   ROOT=DIR build.sh OUTPUT RUNTIME [LIBRARY...]        with AMD's compiler in DIR (scripts/rocm-root)
# LIBRARY is a file of rocBLAS, hipBLASLt, MIOpen, rocRAND, hipFFT or RCCL, which libtorch_hip.so is linked to.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
runtime=$2
shift 2
have=
for library in "$@"; do
    case $library in
    *librocblas.so*) have="$have -DHAVE_ROCBLAS" ;;
    *libhipblaslt.so*) have="$have -DHAVE_HIPBLASLT" ;;
    *libMIOpen.so*) have="$have -DHAVE_MIOPEN" ;;
    *librocrand.so*) have="$have -DHAVE_ROCRAND" ;;
    *libhipfft.so*) have="$have -DHAVE_HIPFFT" ;;
    *librccl.so*) have="$have -DHAVE_RCCL" ;;
    esac
done

# The newest compiler of the root directory.
if [ -n "${ROOT:-}" ]; then
    clang=$(find "$ROOT/root/usr/bin" -name 'clang-[0-9]*' -printf '%f\n' | grep -x 'clang-[0-9]*' | sort -V | tail -1)
    [ -n "$clang" ] || { echo "$ROOT contains no compiler: run scripts/rocm-root 6 $ROOT" >&2; exit 1; }
fi
in_root() { "$here/../../../../../scripts/rocm-root" exec "$ROOT" --bind "$out" "$@"; }

c() { # OBJECT SOURCE OPTIONS...
    object=$1 source=$2
    shift 2
    if [ -n "${ROOT:-}" ]; then
        in_root "$clang" -std=gnu11 -O1 -fPIC -Wall -Wextra -Werror -D__HIP_PLATFORM_AMD__ "$@" -c "$here/$source" -o "$out/$object"
    else
        "${CC:-cc}" -std=gnu11 -O1 -fPIC -Wall -Wextra -Werror -DHIP_SUBSET "$@" -c "$here/$source" -o "$out/$object"
    fi
}

kernels() { # OBJECT OPTIONS...
    object=$1
    shift
    if [ -n "${ROOT:-}" ]; then
        in_root "clang++-${clang#clang-}" -x hip --offload-arch=gfx90a -O1 -fPIC -Wall "$@" -c "$here/kernels.hip" -o "$out/$object"
    else
        c "$object" kernels.c "$@"
    fi
}

library() { # NAME FILES...
    name=$1
    shift
    (cd "$out" && "${CC:-cc}" -shared -o "$name.$$" -Wl,-soname,"$name" -Wl,-rpath,'$ORIGIN' -Wl,--no-as-needed "$@" -lpthread -ldl && mv "$name.$$" "$name")
}

kernels at.o -DUNIT=at -DWITH_MANAGED
kernels at_backward.o -DUNIT=at_backward
kernels aotriton.o -DUNIT=aotriton
kernels vision.o -DUNIT=vision
kernels extension_kernels.o -DUNIT=extension
c c10_hip.o c10_hip.c
c torch_hip.o torch_hip.c
c math_libraries.o math_libraries.c $have
c collectives.o collectives.c $have
c compiled.o compiled.c
c torch_python.o torch_python.c
c extension.o extension.c
c python.o python.c
c global_deps.o global_deps.c
"${CXX:-c++}" -O1 -fPIC -Wall -Werror -c "$here/uncaught.cpp" -o "$out/uncaught.o"

library libtorch_global_deps.so global_deps.o
library libc10_hip.so c10_hip.o "$runtime"
library libaotriton.so aotriton.o "$runtime"
library libvision.so vision.o "$runtime"
library libtorch_hip.so at.o at_backward.o torch_hip.o math_libraries.o collectives.o compiled.o libaotriton.so libvision.so libc10_hip.so "$@" "$runtime"
library libtorch_python.so torch_python.o uncaught.o libtorch_hip.so libc10_hip.so -lstdc++
library libextension.so extension_kernels.o extension.o libc10_hip.so "$runtime"
"${CC:-cc}" -o "$out/python.$$" "$out/python.o" -ldl
mv "$out/python.$$" "$out/python"
