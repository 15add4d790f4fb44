/* Is opened with RTLD_GLOBAL before all other libraries, and contains nothing that uses the GPU. */
int torch_global_deps(void) { return 0; }
