package account

// Names are the names of users and groups by their numbers.
type Names struct{ Users, Groups map[int]string }

// ReadNames reads them from the container. What it cannot read has no names.
func ReadNames() *Names {
	known, _ := Read()
	return &Names{Users: byNumber(known.Passwd), Groups: byNumber(known.Group)}
}

// byNumber maps numbers to names. The first line of a number counts.
func byNumber(text string) map[int]string {
	m := map[int]string{}
	each(text, 3, func(fields []string) bool {
		id, ok := parseID(fields[2])
		if _, twice := m[int(id)]; ok && !twice {
			m[int(id)] = fields[0]
		}
		return true
	})
	return m
}
