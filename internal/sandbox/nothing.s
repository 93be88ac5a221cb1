#include "textflag.h"

// nothing is a signal handler that does nothing. It knows neither goroutine nor stack, and may
// be entered anywhere: its return is to where the kernel, or the restorer, ends a signal.
TEXT nothing<>(SB), NOSPLIT|NOFRAME, $0-0
	RET

DATA ·nothingAt(SB)/8, $nothing<>(SB)
GLOBL ·nothingAt(SB), NOPTR|RODATA, $8
