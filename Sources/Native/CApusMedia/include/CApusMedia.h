#pragma once
#include <libavutil/error.h>
