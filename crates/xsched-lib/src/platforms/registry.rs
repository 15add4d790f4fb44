// The platforms of this build, by the names of their directories. A new platform adds its name here and nothing else.
//
// Two crates include this file, each with a `register!` of its own: the library compiles `NAME/mod.rs`, and the `xsched`
// program compiles `NAME/doctor.rs`.
register! { cuda, hip, opencl, levelzero, ascend, cudla, vpi, corex, vulkan, xsim }
