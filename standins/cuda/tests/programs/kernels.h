/* The three kernels as PTX for a real device, with one thread each. The stand-in has them in every module. */
#define WAIT_NS \
    "  ld.param.u64 %rd0, [ns];\n" \
    "  mov.u64 %rd1, %globaltimer;\n" \
    "wait:\n" \
    "  mov.u64 %rd2, %globaltimer;\n" \
    "  sub.u64 %rd3, %rd2, %rd1;\n" \
    "  setp.lt.u64 %p0, %rd3, %rd0;\n" \
    "  @%p0 bra wait;\n"
#define REGISTERS "  .reg .pred %p<2>;\n  .reg .u32 %r<4>;\n  .reg .u64 %rd<12>;\n"

static const char KERNELS[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns) {\n" REGISTERS WAIT_NS "  ret;\n}\n"
    ".visible .entry fill(.param .u64 ns, .param .u64 to, .param .u32 value, .param .u64 count) {\n" REGISTERS WAIT_NS
    "  ld.param.u64 %rd4, [to];\n"
    "  ld.param.u32 %r0, [value];\n"
    "  ld.param.u64 %rd5, [count];\n"
    "next:\n"
    "  setp.eq.u64 %p1, %rd5, 0;\n"
    "  @%p1 bra done;\n"
    "  st.global.u32 [%rd4], %r0;\n"
    "  add.u64 %rd4, %rd4, 4;\n"
    "  sub.u64 %rd5, %rd5, 1;\n"
    "  bra next;\n"
    "done:\n  ret;\n}\n"
    ".visible .entry add(.param .u64 ns, .param .u64 to, .param .u64 from, .param .u32 delta, .param .u64 count) {\n"
    REGISTERS WAIT_NS
    "  ld.param.u64 %rd4, [to];\n"
    "  ld.param.u64 %rd6, [from];\n"
    "  ld.param.u32 %r0, [delta];\n"
    "  ld.param.u64 %rd5, [count];\n"
    "next:\n"
    "  setp.eq.u64 %p1, %rd5, 0;\n"
    "  @%p1 bra done;\n"
    "  ld.global.u32 %r1, [%rd6];\n"
    "  add.u32 %r1, %r1, %r0;\n"
    "  st.global.u32 [%rd4], %r1;\n"
    "  add.u64 %rd4, %rd4, 4;\n"
    "  add.u64 %rd6, %rd6, 4;\n"
    "  sub.u64 %rd5, %rd5, 1;\n"
    "  bra next;\n"
    "done:\n  ret;\n}\n";
