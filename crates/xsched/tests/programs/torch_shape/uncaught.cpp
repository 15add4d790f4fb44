// An exception that no frame catches.
#include <stdexcept>

extern "C" void raise_uncaught() { throw std::runtime_error("uncaught"); }
