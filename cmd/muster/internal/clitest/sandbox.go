package clitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"

	"github.com/musterhq/muster/api"
)

// Sandbox is the inside of all allocations of a server: commands are run on this host, and files
// are those of a folder.
type Sandbox struct {
	// Root is the folder that stands for the sandbox's root.
	Root string
	// Ports are addresses on this host, by the port inside.
	Ports map[int]string
	// Stats are what allocations use, by allocation. Each look finds a second of work in two
	// seconds.
	Stats map[string]api.AllocStats
	// Images are those that nodes keep, by node; a node that is not in it does not exist.
	Images map[string]*api.ImageList
	// Pulls are the lines of progress that a pull sends.
	Pulls []api.ImageProgress
	// Refuse is the answer to every request below an allocation, if set.
	Refuse *api.Problem
	// Requests and Attached are what was asked for, in order.
	Requests []api.ExecRequest
	Attached []api.ExecAttach
	// Signals are those that executions were sent.
	Signals []string
	// Sizes are those of terminals, as rows x columns.
	Sizes []string
	// Spool is the stdout of the detached execution "e1".
	Spool string
	// Endless says that what is attached to does not end.
	Endless bool
	// Cut is how many attached connections are cut after a part of the output.
	Cut int
	// Known are the executions that are listed.
	Known []api.Execution
	// Owners are what archives were written with: keep_owners.
	Owners []string
	// pids are the commands that were started.
	pids []int
	// gone waits for the ends of commands.
	gone sync.WaitGroup
}

// endCommands kills what commands of the test may be left, and waits for them: none may outlive the
// folder that it works in.
func (s *Server) endCommands() {
	s.Do(func() {
		for _, pid := range s.Inside.pids {
			// The whole group goes: a shell's children hold its output open.
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	})
	s.Inside.gone.Wait()
}

// sandbox answers about the inside of allocations.
func (s *Server) sandbox(mux *http.ServeMux) {
	// The folder is the test's own, and goes with it.
	in := &s.Inside
	in.Root, in.Ports, in.Stats, in.Images = s.t.TempDir(), map[int]string{}, map[string]api.AllocStats{}, map[string]*api.ImageList{}
	// What is below an allocation is refused in the same way for all requests.
	handle := func(pattern string, h func(w http.ResponseWriter, r *http.Request)) {
		mux.HandleFunc(pattern, s.withAlloc(func(w http.ResponseWriter, r *http.Request, al *api.Alloc) {
			switch {
			case in.Refuse != nil:
				s.problem(w, in.Refuse)
			case al.Status == "ended":
				s.problem(w, &api.Problem{Status: 410, Title: "Gone", Detail: "allocation " + al.ID + " has ended", Code: api.CodeEnded})
			default:
				s.mu.Unlock() // it may take long
				defer s.mu.Lock()
				h(w, r)
			}
		}))
	}
	const one = "/v1/allocations/{id}"
	handle("GET "+one+"/exec", s.execSocket)
	handle("POST "+one+"/exec", s.execPost)
	// Only those that a test has put there are known.
	handle("GET "+one+"/executions", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, 200, api.ExecutionList{Executions: in.Known})
	})
	handle("GET "+one+"/executions/{eid}", func(w http.ResponseWriter, r *http.Request) {
		for _, e := range in.Known {
			if e.ID == r.PathValue("eid") {
				s.answer(w, 200, e)
				return
			}
		}
		s.problem(w, &api.Problem{Status: 404, Title: "Not Found", Detail: "execution " + r.PathValue("eid") + ": not found", Code: "not-found"})
	})
	handle("POST "+one+"/executions/{eid}/signal", func(w http.ResponseWriter, r *http.Request) {
		var b api.ExecutionSignal
		_ = json.NewDecoder(r.Body).Decode(&b)
		s.Do(func() { in.Signals = append(in.Signals, b.Signal) })
		w.WriteHeader(204)
	})
	handle("GET "+one+"/files", s.listFiles)
	handle("GET "+one+"/files/stat", s.statFile)
	handle("GET "+one+"/files/content", func(w http.ResponseWriter, r *http.Request) {
		b, err := os.ReadFile(s.at(r))
		if err != nil {
			s.fileProblem(w, r, err)
			return
		}
		_, _ = w.Write(b)
	})
	handle("GET "+one+"/files/archive", s.readArchive)
	handle("PUT "+one+"/files/archive", s.writeArchive)
	handle("GET "+one+"/ports", func(w http.ResponseWriter, r *http.Request) {
		l := api.PortList{Ports: []api.Port{}}
		for p := range in.Ports {
			l.Ports = append(l.Ports, api.Port{Port: p, Addresses: []string{"127.0.0.1"}, Reachable: true})
		}
		s.answer(w, 200, l)
	})
	handle("GET "+one+"/ports/{port}", s.portSocket)
	handle("GET "+one+"/stats", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		st := in.Stats[r.PathValue("id")]
		// A second of work in two seconds: half of a core.
		st.CPUSeconds++
		st.At = st.At.Add(2 * time.Second)
		in.Stats[r.PathValue("id")] = st
		s.answer(w, 200, st)
	})
	s.nodes(mux)
}

// problem writes a problem with a code, by which commands tell what it means.
func (s *Server) problem(w http.ResponseWriter, p *api.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// nodes answers about nodes and their images. There are two nodes that serve, and none in the pool
// "empty".
func (s *Server) nodes(mux *http.ServeMux) {
	in := &s.Inside
	mux.HandleFunc("GET /v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		l := api.NodeList{}
		for _, id := range []string{"n1", "n2"} {
			if r.URL.Query().Get("pool") == "empty" {
				break
			}
			l.Nodes = append(l.Nodes, api.Node{ID: id, Pool: "p", Stage: "serving"})
		}
		s.answer(w, 200, l)
	})
	// A node is known if it has images, even none.
	known := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if in.Images[r.PathValue("id")] == nil {
				s.problem(w, &api.Problem{Status: 404, Title: "Not Found", Detail: "node " + r.PathValue("id") + ": not found", Code: "not-found"})
				return
			}
			h(w, r)
		}
	}
	mux.HandleFunc("GET /v1/nodes/{id}/images", known(func(w http.ResponseWriter, r *http.Request) { s.answer(w, 200, in.Images[r.PathValue("id")]) }))
	mux.HandleFunc("POST /v1/nodes/{id}/images", known(func(w http.ResponseWriter, r *http.Request) {
		for _, p := range in.Pulls {
			_ = json.NewEncoder(w).Encode(p)
		}
	}))
	mux.HandleFunc("POST /v1/nodes/{id}/images/prune", known(func(w http.ResponseWriter, r *http.Request) {
		// Of what is asked for depends how much is freed, so that a test sees the flag arrive.
		freed := int64(1 << 20)
		if r.URL.Query().Get("all") == "true" {
			freed = 3 << 20
		}
		s.answer(w, 200, api.ImagesPruned{Freed: freed})
	}))
}

// execSocket runs a command over a WebSocket, or joins the one that is running.
func (s *Server) execSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	ctx := r.Context()
	// A client may send up to a mebibyte at once, which is more than the library lets through by
	// itself.
	c.SetReadLimit(4 << 20)
	tell := func(ev api.ExecEvent) {
		b, _ := json.Marshal(ev)
		_ = c.Write(ctx, websocket.MessageText, b)
	}
	_, first, err := c.Read(ctx)
	if err != nil {
		return
	}
	// The first message says whether a command is started or joined.
	var join api.ExecAttach
	if json.Unmarshal(first, &join) == nil && join.Attach != "" {
		s.attach(c, r, join, tell)
		return
	}
	var req api.ExecRequest
	if err := json.Unmarshal(first, &req); err != nil {
		s.t.Error(err)
	}
	s.Do(func() { s.Inside.Requests = append(s.Inside.Requests, req) })
	if _, err := exec.LookPath(req.Command[0]); err != nil {
		code := api.CodeCommandNotFound
		if errors.Is(err, fs.ErrPermission) {
			code = api.CodeNotExecutable
		}
		tell(api.ExecEvent{Type: api.ExecEventError, Problem: &api.Problem{Status: 422, Title: "Unprocessable Entity", Detail: req.Command[0] + ": no such program", Code: code}})
		return
	}
	// A command with this variable loses its connection in the middle.
	if req.Env["CUT"] != "" {
		tell(api.ExecEvent{Type: api.ExecEventStarted, ID: "e1"})
		_ = c.Write(ctx, websocket.MessageBinary, []byte("\x01part"))
		return // the connection breaks
	}
	// The test's end waits for the command, so that none is left on the host.
	s.Inside.gone.Add(1)
	defer s.Inside.gone.Done()
	s.command(c, r, &req, tell)
}

// command runs a command on this host, and passes bytes between it and the connection.
func (s *Server) command(c *websocket.Conn, r *http.Request, req *api.ExecRequest, tell func(api.ExecEvent)) {
	ctx := r.Context()
	cmd := exec.Command(req.Command[0], req.Command[1:]...)
	cmd.Dir = s.Inside.Root
	cmd.Env = os.Environ()
	// A grandchild may keep the output open after the command has ended.
	cmd.WaitDelay = 5 * time.Second
	for k, v := range req.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	// Each message begins with a byte that says which stream it is of.
	send := func(stream byte, from io.Reader) {
		b := make([]byte, 1+4096)
		for {
			n, err := from.Read(b[1:])
			if n > 0 {
				b[0] = stream
				if c.Write(ctx, websocket.MessageBinary, b[:1+n]) != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	var in io.WriteCloser
	var term *os.File
	var from []io.Reader // stdout and stderr
	var err error
	// A terminal has one stream for both, and the command is in a session of its own.
	if req.TTY {
		term, err = pty.StartWithSize(cmd, &pty.Winsize{Rows: uint16(req.Rows), Cols: uint16(req.Cols)})
		in, from = term, []io.Reader{term}
	} else {
		// Signals go to the group, as in a sandbox, where they go to all of the command.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		stdout, _ := cmd.StdoutPipe()
		stderr, _ := cmd.StderrPipe()
		if req.Stdin {
			in, _ = cmd.StdinPipe()
		}
		from, err = []io.Reader{stdout, stderr}, cmd.Start()
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	s.Do(func() { s.Inside.pids = append(s.Inside.pids, cmd.Process.Pid) })
	tell(api.ExecEvent{Type: api.ExecEventStarted, ID: "e1"})
	var out sync.WaitGroup
	for i, r := range from {
		out.Go(func() { send(api.ExecStdout+byte(i), r) })
	}
	go func() {
		for {
			kind, b, err := c.Read(ctx)
			if err != nil {
				// The client has left, which ends the command.
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				return
			}
			if kind == websocket.MessageBinary {
				_, _ = in.Write(b)
				continue
			}
			s.control(cmd, in, term, b)
		}
	}()
	// All output is sent before the end is.
	out.Wait()
	_ = cmd.Wait() // its state says how it ended
	s.Do(func() {
		s.Inside.pids = slices.DeleteFunc(s.Inside.pids, func(pid int) bool { return pid == cmd.Process.Pid })
	})
	end := &api.ExecEnd{ExitCode: cmd.ProcessState.ExitCode()}
	// A command that a signal has ended has no exit code of its own; shells say 128 + N.
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		end.ExitCode, end.Signal = 128+int(st.Signal()), strings.TrimPrefix(signalText(st.Signal()), "SIG")
	}
	tell(api.ExecEvent{Type: api.ExecEventEnded, ExecEnd: end})
	_ = c.Close(websocket.StatusNormalClosure, "")
}

// signalText is the name of a signal, as the API has it; "" for those that no test sends.
func signalText(sig syscall.Signal) string {
	return map[syscall.Signal]string{syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL", syscall.SIGHUP: "SIGHUP"}[sig]
}

// control does what a message of the client asks for: a signal, a size, or the end of stdin.
func (s *Server) control(cmd *exec.Cmd, in io.WriteCloser, term *os.File, b []byte) {
	var m api.ExecControl
	if err := json.Unmarshal(b, &m); err != nil {
		s.t.Error(err)
	}
	switch m.Type {
	case api.ExecCloseStdin:
		// A terminal has no end of its own: the key for it is sent.
		if term != nil {
			_, _ = term.Write([]byte{4})
		} else {
			_ = in.Close()
		}
	case api.ExecResize:
		_ = pty.Setsize(term, &pty.Winsize{Rows: uint16(m.Rows), Cols: uint16(m.Cols)})
		s.Do(func() { s.Inside.Sizes = append(s.Inside.Sizes, fmt.Sprintf("%dx%d", m.Rows, m.Cols)) })
	case api.ExecSignal:
		s.Do(func() { s.Inside.Signals = append(s.Inside.Signals, m.Signal) })
		// Only signals that commands pass on are known here.
		sig := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "QUIT": syscall.SIGQUIT}[m.Signal]
		_ = syscall.Kill(-cmd.Process.Pid, sig)
	default:
		s.t.Errorf("control %q", b)
	}
}

// attach sends what the detached execution has printed, from where the client has it, and then its
// end. If it is endless, it takes signals until the client leaves.
func (s *Server) attach(c *websocket.Conn, r *http.Request, join api.ExecAttach, tell func(api.ExecEvent)) {
	cut := false
	s.Do(func() {
		s.Inside.Attached = append(s.Inside.Attached, join)
		if cut = s.Inside.Cut > 0; cut {
			s.Inside.Cut--
		}
	})
	// -1 asks for the oldest that is kept, which is all.
	from := max(int(join.Stdout), 0)
	tell(api.ExecEvent{Type: api.ExecEventStarted, ID: join.Attach, Stdout: int64(from)})
	rest := s.Inside.Spool[from:]
	// Half of the output arrives, and then the connection breaks.
	if cut {
		rest = rest[:len(rest)/2]
	}
	_ = c.Write(r.Context(), websocket.MessageBinary, append([]byte{api.ExecStdout}, rest...))
	if cut {
		return // the connection breaks
	}
	for s.Inside.Endless {
		_, b, err := c.Read(r.Context())
		if err != nil {
			return
		}
		var m api.ExecControl
		if err := json.Unmarshal(b, &m); err != nil {
			s.t.Error(err)
		}
		s.Do(func() { s.Inside.Signals = append(s.Inside.Signals, m.Signal) })
	}
	tell(api.ExecEvent{Type: api.ExecEventEnded, ExecEnd: &api.ExecEnd{ExitCode: 5}})
	_ = c.Close(websocket.StatusNormalClosure, "")
}

// execPost runs a command to its end, or says that it started a detached one, without starting it.
func (s *Server) execPost(w http.ResponseWriter, r *http.Request) {
	var req api.ExecRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		s.t.Error(err)
	}
	s.Do(func() { s.Inside.Requests = append(s.Inside.Requests, req) })
	if req.Detach {
		s.answer(w, 202, api.ExecStarted{ID: "e1"})
		return
	}
	cmd := exec.Command(req.Command[0], req.Command[1:]...)
	// Stdin comes with the request, and output goes with the answer.
	cmd.Stdin = bytes.NewReader(req.InputBase64)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	s.answer(w, 200, api.ExecResult{ID: "e1", ExitCode: cmd.ProcessState.ExitCode(), Stdout: out.String(), Stderr: errs.String()})
}

// portSocket passes bytes to a port on this host. A text message ends the client's direction.
func (s *Server) portSocket(w http.ResponseWriter, r *http.Request) {
	port, _ := strconv.Atoi(r.PathValue("port"))
	// It connects first: whether something listens is the answer to the request.
	conn, err := net.Dial("tcp", s.Inside.Ports[port])
	if err != nil {
		s.problem(w, &api.Problem{Status: 502, Title: "Bad Gateway", Detail: fmt.Sprintf("nothing listens on port %d", port), Code: api.CodeNoListener})
		return
	}
	defer func() { _ = conn.Close() }()
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	ctx := r.Context()
	// Both directions run until each has ended, as one may end before the other.
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			kind, b, err := c.Read(ctx)
			if err != nil {
				_ = conn.Close()
				return
			}
			if kind == websocket.MessageText {
				_ = conn.(*net.TCPConn).CloseWrite()
				continue
			}
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	})
	b := make([]byte, 4096)
	for {
		n, err := conn.Read(b)
		if n > 0 && c.Write(ctx, websocket.MessageBinary, b[:n]) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	_ = c.Write(ctx, websocket.MessageText, []byte(`{"type":"close-write"}`))
	wg.Wait()
}
