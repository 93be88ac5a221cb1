package execs

import (
	"strconv"
	"syscall"
	"unsafe"

	"github.com/musterhq/muster/internal/sandbox/system"
)

// openTerminal makes a terminal of a size: init's side, which does not block, and the program's.
func openTerminal(rows, cols int) (master, slave int, err error) {
	const path = "/dev/ptmx"
	master, err = system.OpenInside(path, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK)
	if err != nil {
		return -1, -1, &system.PathError{Path: path, Why: err.Error()}
	}
	// Anybody in a container may have put something else at this path.
	var st syscall.Stat_t
	const multiplexer = 5<<8 | 2
	if err := syscall.Fstat(master, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFCHR || st.Rdev != multiplexer {
		_ = syscall.Close(master)
		return -1, -1, &system.PathError{Path: path, Why: "not the device of that name"}
	}
	slave, err = openSlave(master)
	if err == nil {
		err = setSize(master, rows, cols)
	}
	if err != nil {
		_ = syscall.Close(master)
		if slave >= 0 {
			_ = syscall.Close(slave)
		}
		return -1, -1, err
	}
	return master, slave, nil
}

// openSlave opens the program's side of a terminal.
func openSlave(master int) (int, error) {
	var number, locked int32
	if err := ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&locked)); err != nil {
		return -1, &system.PathError{Path: "unlock a terminal", Why: err.Error()}
	}
	// By the descriptor, and not by a name below /dev/pts, where something else could stand.
	const getPeer = 0x5441 // TIOCGPTPEER
	fd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), getPeer, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC)
	if errno == 0 {
		return int(fd), nil
	}
	if err := ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&number)); err != nil {
		return -1, &system.PathError{Path: "number of a terminal", Why: err.Error()}
	}
	path := "/dev/pts/" + strconv.Itoa(int(number))
	slave, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return -1, &system.PathError{Path: path, Why: err.Error()}
	}
	return slave, nil
}

// setSize sets the size that a program sees. The kernel tells the program by WINCH. Without rows
// and columns the size stays unknown.
func setSize(fd, rows, cols int) error {
	if rows <= 0 && cols <= 0 {
		return nil
	}
	const most = 1<<16 - 1
	size := [4]uint16{uint16(min(max(rows, 0), most)), uint16(min(max(cols, 0), most))}
	return ioctl(fd, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
}

// resize is setSize for a terminal in use.
func resize(master *system.Endpoint, rows, cols int) (err error) {
	master.Brief.Enter()
	defer master.Brief.Leave()
	if wrong := master.Control(func(fd uintptr) { err = setSize(int(fd), rows, cols) }); wrong != nil {
		return wrong
	}
	return err
}

// endOfInput types the character that ends the input. The terminal takes it for the end only at the
// beginning of a line: in the middle of a line the first one ends that line, so it is typed twice.
// A program that reads single keys sees a key.
func endOfInput(master *system.Endpoint, midLine bool) {
	var mode syscall.Termios
	var err error
	master.Brief.Enter()
	wrong := master.Control(func(fd uintptr) { err = ioctl(int(fd), syscall.TCGETS, unsafe.Pointer(&mode)) })
	master.Brief.Leave()
	if wrong != nil || err != nil {
		return
	}
	end := mode.Cc[syscall.VEOF]
	typed := []byte{end}
	if midLine && mode.Lflag&syscall.ICANON != 0 {
		typed = append(typed, end)
	}
	_, _ = master.Write(typed)
}

// ioctl is the system call, for calls that do not block.
func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
