#include "CApusMemory.h"
