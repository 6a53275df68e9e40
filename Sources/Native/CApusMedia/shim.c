#include "CApusMedia.h"
