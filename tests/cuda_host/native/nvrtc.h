// What modules know of the compiler.
#pragma once
#include <string>

std::string cache();                     // where compiled kernels are kept
std::string body_of(const char* image);  // the shared library in what nvrtcGetCUBIN gave; "" if it is something else
