package initwire

// MaxListening is how many listening ports one PortList names at most.
const MaxListening = 1024

// Listening is a TCP port inside on which somebody listens.
type Listening struct {
	Port int
	// IP is the address, 4 or 16 bytes; all of them zero: every address.
	IP []byte
	// UID is who listens.
	UID int
}

// Reachable tells whether Connect gets there: it goes to 127.0.0.1 and then to ::1.
func (l *Listening) Reachable() bool {
	every := true
	for _, b := range l.IP {
		every = every && b == 0
	}
	ip := string(l.IP)
	return every || ip == "\x7f\x00\x00\x01" || ip == "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"
}

// PortList answers Ports.
type PortList struct{ Listening []Listening }

// Fields encodes it.
func (p *PortList) Fields() []byte {
	var b []byte
	for _, l := range p.Listening {
		one := appendInt(nil, 1, int64(l.Port))
		one = appendString(one, 2, string(l.IP))
		b = appendString(b, 1, string(appendInt(one, 3, int64(l.UID))))
	}
	return b
}

// ParsePortList decodes it.
func ParsePortList(fields []byte) (*PortList, error) {
	p := &PortList{}
	var inner error
	err := each(fields, func(key byte, v value) {
		if key != 1 || len(p.Listening) >= MaxListening || inner != nil {
			return
		}
		var l Listening
		inner = each(v, func(key byte, v value) {
			switch key {
			case 1:
				l.Port = int(v.int())
			case 2:
				l.IP = append([]byte(nil), v...)
			case 3:
				l.UID = int(v.int())
			}
		})
		// What is no port or no address is not passed on.
		if l.Port > 0 && l.Port < 1<<16 && (len(l.IP) == 4 || len(l.IP) == 16) {
			p.Listening = append(p.Listening, l)
		}
	})
	if err == nil {
		err = inner
	}
	return p, err
}
