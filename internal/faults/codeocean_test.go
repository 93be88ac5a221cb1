package faults

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// codeOcean sends the requests of CodeOcean, the client for which Poseidon was made, and reads the answers as it does.
// What it makes of an answer is named as its errors are: "ok", EnvironmentNotFound (it sets the environment and asks again),
// RunnerNotFound (it asks for another runner), NotAvailable (no runner is warm), WorkspaceError, BadRequest, Unauthorized,
// InternalServerError, and UnexpectedResponse for what it has no word for.
type codeOcean struct {
	t           *testing.T
	base, token string
	// runner is the id of the one that it uses.
	runner string
}

// request sends a request with CodeOcean's headers.
func (c *codeOcean) request(method, path, body string) (*http.Response, string) {
	c.t.Helper()
	q := must(http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body)))(c.t)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Poseidon-Token", c.token)
	resp := must(http.DefaultClient.Do(q))(c.t)
	defer func() { _ = resp.Body.Close() }()
	return resp, string(must(io.ReadAll(resp.Body))(c.t))
}

// call sends a request and names its outcome. known are the statuses that this request gives a meaning of its own.
func (c *codeOcean) call(method, path, body string, known map[int]string) (outcome, answer string) {
	c.t.Helper()
	resp, answer := c.request(method, path, body)
	if outcome, ok := known[resp.StatusCode]; ok {
		return outcome, answer
	}
	var m struct{ Message, ErrorCode string }
	if resp.StatusCode == 400 || resp.StatusCode == 500 {
		if err := json.Unmarshal([]byte(answer), &m); err != nil || m.Message == "" {
			c.t.Errorf("%s %s: %d %q is no error of Poseidon's", method, path, resp.StatusCode, answer)
		}
	}
	switch {
	case resp.StatusCode == 400:
		return "BadRequest", answer
	case resp.StatusCode == 401:
		return "Unauthorized", answer
	case resp.StatusCode == 410:
		return "RunnerNotFound", answer
	case resp.StatusCode == 500 && m.ErrorCode == "NOMAD_OVERLOAD":
		return "NotAvailable", answer
	case resp.StatusCode == 500:
		return "InternalServerError " + m.ErrorCode, answer
	}
	return fmt.Sprintf("UnexpectedResponse %d", resp.StatusCode), answer
}

// only is for requests for which every other status is unexpected.
func (c *codeOcean) only(method, path, body string, good ...int) (outcome, answer string) {
	c.t.Helper()
	resp, answer := c.request(method, path, body)
	for _, status := range good {
		if resp.StatusCode == status {
			return "ok", answer
		}
	}
	return fmt.Sprintf("UnexpectedResponse %d", resp.StatusCode), answer
}

// sync sets environment 19. The id is in its path and in its body.
func (c *codeOcean) sync(image string, warm int) string {
	c.t.Helper()
	body := fmt.Sprintf(`{"id":19,"image":%q,"prewarmingPoolSize":%d,"cpuLimit":20,"memoryLimit":32,"networkAccess":false,"exposedPorts":[]}`, image, warm)
	outcome, _ := c.only("PUT", "execution-environments/19", body, 201, 204)
	return outcome
}

// provide asks for a runner, which is used from then on.
func (c *codeOcean) provide(timeout int) string {
	c.t.Helper()
	outcome, answer := c.call("POST", "runners", fmt.Sprintf(`{"executionEnvironmentId":19,"inactivityTimeout":%d}`, timeout), map[int]string{200: "ok", 404: "EnvironmentNotFound"})
	if outcome != "ok" {
		return outcome
	}
	var got struct{ RunnerID string }
	if err := json.Unmarshal([]byte(answer), &got); err != nil || got.RunnerID == "" {
		c.t.Errorf("%v: %s", err, answer)
	}
	c.runner = got.RunnerID
	return outcome
}

// destroy ends the runner; one that is gone is no error.
func (c *codeOcean) destroy() string {
	c.t.Helper()
	outcome, _ := c.call("DELETE", "runners/"+c.runner, "", map[int]string{204: "ok", 410: "ok"})
	return outcome
}

// copy empties the work directory and writes files: first the directories, then what is in them. It destroys a runner
// for which this is a bad request.
func (c *codeOcean) copy(directories []string, files ...[2]string) string {
	c.t.Helper()
	copies := []map[string]string{}
	for _, d := range directories {
		copies = append(copies, map[string]string{"path": d + "/"})
	}
	for _, f := range files {
		copies = append(copies, map[string]string{"path": f[0], "content": base64.StdEncoding.EncodeToString([]byte(f[1]))})
	}
	body, _ := json.Marshal(map[string]any{"copy": copies, "delete": []string{"./*"}})
	outcome, _ := c.call("PATCH", "runners/"+c.runner+"/files", string(body), map[int]string{204: "ok"})
	return outcome
}

// list is the names of the files of the runner, in order.
func (c *codeOcean) list(query string) string {
	c.t.Helper()
	outcome, answer := c.call("GET", "runners/"+c.runner+"/files?"+query, "", map[int]string{200: "ok", 424: "WorkspaceError"})
	if outcome != "ok" {
		return outcome
	}
	var list struct {
		Files []struct{ Name, EntryType string }
	}
	if err := json.Unmarshal([]byte(answer), &list); err != nil {
		c.t.Errorf("%v: %s", err, answer)
	}
	for _, f := range list.Files {
		outcome += " " + f.EntryType + f.Name
	}
	return outcome
}

func (c *codeOcean) download(query string) string {
	c.t.Helper()
	outcome, answer := c.call("GET", "runners/"+c.runner+"/files/raw?"+query, "", map[int]string{200: "ok", 424: "WorkspaceError"})
	if outcome == "ok" {
		outcome += " " + answer
	}
	return outcome
}

// attempt is one execution.
type attempt struct {
	command, input string
	timeLimit      int
	privileged     bool
	stdout, stderr string
	during         func() // is called once something was printed
}

// execute runs a command and names its end: the exit status, out-of-memory for 137 (there is no other way to see it), timeout, or
// unknown if the connection was closed without either. After the last two it destroys the runner.
func (c *codeOcean) execute(a *attempt) string {
	c.t.Helper()
	limit := a.timeLimit
	if limit == 0 {
		limit = 60
	}
	body, _ := json.Marshal(map[string]any{"command": a.command, "timeLimit": limit, "privilegedExecution": a.privileged})
	outcome, answer := c.call("POST", "runners/"+c.runner+"/execute", string(body), map[int]string{200: "ok"})
	if outcome != "ok" {
		return outcome
	}
	var got struct{ WebsocketURL string }
	if err := json.Unmarshal([]byte(answer), &got); err != nil || got.WebsocketURL == "" {
		c.t.Fatalf("%v: %s", err, answer)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, got.WebsocketURL, &websocket.DialOptions{HTTPHeader: http.Header{"Poseidon-Token": {c.token}}})
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	if a.input != "" {
		if err := ws.Write(ctx, websocket.MessageText, []byte(a.input+"\n")); err != nil {
			c.t.Fatal(err)
		}
	}
	end := "unknown"
	for {
		kind, raw, err := ws.Read(ctx)
		if err != nil {
			if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				c.t.Errorf("%q ended with %v", a.command, err)
			}
			break
		}
		m, data := c.message(kind, raw)
		switch m {
		case "stdout":
			a.stdout += data
		case "stderr":
			a.stderr += data
		case "exit":
			if end = "exit " + data; data == "137" {
				end = "out of memory"
			}
		case "timeout":
			end = m
		}
		if m == "stdout" && a.during != nil {
			a.during()
			a.during = nil
		}
	}
	if end == "timeout" || end == "unknown" {
		end += ", destroyed: " + c.destroy()
	}
	return end
}

// message is a message that keeps to the schema that CodeOcean checks: what does not is ignored there.
func (c *codeOcean) message(kind websocket.MessageType, raw []byte) (name, data string) {
	c.t.Helper()
	var m map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil || kind != websocket.MessageText {
		c.t.Fatalf("%v %v in %q", kind, err, raw)
	}
	name, _ = m["type"].(string)
	value, has := m["data"]
	good := false
	switch name {
	case "start", "timeout":
		good = !has && len(m) == 1
	case "stdout", "stderr", "error":
		data, good = value.(string)
	case "exit":
		n, is := value.(json.Number)
		code, err := n.Int64()
		data, good = n.String(), is && err == nil && code >= 0 && code <= 255
	}
	if !good || has && len(m) != 2 {
		c.t.Errorf("%s does not keep to the schema of messages", raw)
	}
	return name, data
}

// The requests of CodeOcean, with what it has to make of the answers: from lib/runner/strategy/poseidon.rb, lib/runner/connection.rb,
// app/models/runner.rb and app/models/execution_environment.rb of openHPI/codeocean.
func TestCodeOceanRequests(t *testing.T) {
	t.Parallel()
	h, image := newPoseidonHost(t)
	h.start()
	c := &codeOcean{t: t, base: h.poseidon().base, token: poseidonToken}
	whole := "path=.%2F&privilegedExecution=false&recursive=true"
	first := func(outcome, _ string) string { return outcome }
	provided := func() string { // as it does until one is warm
		h.eventually("a runner is warm", func() bool { return c.provide(180) == "ok" })
		return "ok"
	}
	exec := func(a attempt, stdout string) func() string {
		return func() string {
			got := c.execute(&a)
			if a.stdout != stdout {
				t.Errorf("%q printed %q (and %q), want %q", a.command, a.stdout, a.stderr, stdout)
			}
			return got
		}
	}
	for _, row := range []struct {
		name string
		do   func() string
		want string
	}{
		{"health", func() string { return first(c.only("GET", "health", "", 204)) }, "ok"},
		{"version", func() string {
			outcome, answer := c.call("GET", "version", "", map[int]string{200: "ok", 404: "N/A"})
			if outcome == "ok" {
				var v string
				if err := json.Unmarshal([]byte(answer), &v); err != nil || v == "" {
					t.Errorf("%v: %q", err, answer)
				}
			}
			return outcome
		}, "ok"},
		{"no environments", func() string {
			outcome, answer := c.call("GET", "execution-environments", "", map[int]string{200: "ok"})
			return outcome + " " + strings.TrimSpace(answer)
		}, `ok {"executionEnvironments":[]}`},
		{"a wrong token", func() string {
			c.token = "wrong"
			defer func() { c.token = poseidonToken }()
			return c.provide(180)
		}, "Unauthorized"},
		{"a runner of an environment that was never set", func() string { return c.provide(180) }, "EnvironmentNotFound"},
		{"the environment is set then", func() string { return c.sync(image, 0) }, "ok"},
		{"none is warm", func() string { return c.provide(180) }, "NotAvailable"},
		{"it is set again", func() string { return c.sync(image, 2) }, "ok"},
		{"an image that is none", func() string { return c.sync("no such image!", 2) }, "UnexpectedResponse 400"},
		{"an image that is not there", func() string {
			outcome := c.sync("docker-archive:"+h.path("none.tar"), 1)
			h.eventually("the cause is told", func() bool {
				outcome, answer := c.call("POST", "runners", `{"executionEnvironmentId":19,"inactivityTimeout":180}`, nil)
				// One of the image before may have been warm still.
				var got struct{ RunnerID string }
				if json.Unmarshal([]byte(answer), &got) == nil && got.RunnerID != "" {
					c.call("DELETE", "runners/"+got.RunnerID, "", nil)
				}
				return outcome == "NotAvailable" && strings.Contains(answer, "none.tar")
			})
			return outcome
		}, "ok"},
		{"it is mended", func() string { return c.sync(image, 2) }, "ok"},
		{"a runner", provided, "ok"},
		{"statistics", func() string {
			outcome, answer := c.call("GET", "statistics/execution-environments", "", map[int]string{200: "ok"})
			var all map[string]map[string]int
			if err := json.Unmarshal([]byte(answer), &all); err != nil || all["19"]["id"] != 19 || all["19"]["prewarmingPoolSize"] != 2 || all["19"]["usedRunners"] != 1 {
				t.Errorf("%v: %s", err, answer)
			}
			return outcome
		}, "ok"},
		{"the check of a new image", exec(attempt{command: "whoami"}, "user\r\n"), "exit 0"},
		{"files", func() string {
			return c.copy([]string{"lib", "lib/deep"}, [2]string{"main.sh", "read x; echo \"got $x\"; exit 3\n"}, [2]string{"lib/deep/data", "\x00\xff"}, [2]string{"empty", ""})
		}, "ok"},
		{"a run with input", exec(attempt{command: "sh main.sh", input: "World"}, "World\r\ngot World\r\n"), "exit 3"},
		{"its files", func() string { return c.list(whole) }, "ok -./empty -./main.sh d./lib d./lib/deep -./lib/deep/data"},
		{"one directory of them", func() string { return c.list("path=lib&privilegedExecution=false&recursive=false") }, "ok ddeep"},
		{"a directory that is not there", func() string { return c.list("path=none&privilegedExecution=false&recursive=true") }, "WorkspaceError"},
		{"a file", func() string { return c.download("path=lib%2Fdeep%2Fdata&privilegedExecution=false") }, "ok \x00\xff"},
		{"a file that is not there", func() string { return c.download("path=none&privilegedExecution=false") }, "WorkspaceError"},
		{"a file of root's", func() string { return c.download("path=%2Fsecret&privilegedExecution=false") }, "WorkspaceError"},
		{"a file of root's, privileged", func() string { return c.download("path=%2Fsecret&privilegedExecution=true") }, "ok of root\n"},
		{"files once more", func() string { return c.copy(nil, [2]string{"main.sh", "echo again\n"}) }, "ok"},
		{"nothing is left of those before", func() string { return c.list(whole) }, "ok -./main.sh"},
		{"an exit status", exec(attempt{command: "exit 255"}, ""), "exit 255"},
		{"an end by a signal", exec(attempt{command: "kill -SEGV $$"}, ""), "exit 139"},
		{"a command that is not there", exec(attempt{command: "none 2>/dev/null"}, ""), "exit 127"},
		{"privileged", exec(attempt{command: "whoami", privileged: true}, "root\r\n"), "exit 0"},
		{"the account of an execution", exec(attempt{command: "echo $USER $LOGNAME $HOME $SHELL"}, "user user /home/user /bin/sh\r\n"), "exit 0"},
		{"the account of a privileged one", exec(attempt{command: "echo $USER $LOGNAME $HOME $SHELL", privileged: true}, "root root /root /bin/sh\r\n"), "exit 0"},
		{"quotation marks", exec(attempt{command: `echo "it's"`}, "it's\r\n"), "exit 0"},
		{"too much memory", exec(attempt{command: "dd if=/dev/zero of=/dev/null bs=200M count=1"}, ""), "out of memory"},
		{"the runner is usable after it", exec(attempt{command: "sh main.sh"}, "again\r\n"), "exit 0"},
		{"the time limit", exec(attempt{command: "echo begun; sleep 1000", timeLimit: 1}, "begun\r\n"), "timeout, destroyed: ok"},
		{"files of a runner that is gone", func() string { return c.copy(nil, [2]string{"x", "y"}) }, "RunnerNotFound"},
		{"a list of it", func() string { return c.list(whole) }, "RunnerNotFound"},
		{"a file of it", func() string { return c.download("path=x&privilegedExecution=false") }, "RunnerNotFound"},
		{"an execution in it", exec(attempt{command: "true"}, ""), "RunnerNotFound"},
		{"it is destroyed again", c.destroy, "ok"},
		{"another runner", provided, "ok"},
		{"a body that is none", func() string {
			return first(c.call("PATCH", "runners/"+c.runner+"/files", `{"copy": [{"path": "x", "content": "`, map[int]string{204: "ok"}))
		}, "BadRequest"},
		{"a runner that is released while it is used", exec(attempt{command: "echo begun; sleep 1000", during: func() { c.destroy() }}, "begun\r\n"), "unknown, destroyed: ok"},
		{"one that is used when the environment goes", provided, "ok"},
		{"the environment goes", func() string { return first(c.only("DELETE", "execution-environments/19", "", 204)) }, "ok"},
		{"it is gone", func() string { return first(c.only("DELETE", "execution-environments/19", "", 204)) }, "UnexpectedResponse 404"},
		{"its runner stays", exec(attempt{command: "echo here"}, "here\r\n"), "exit 0"},
		{"there are no more of it", func() string { return c.provide(180) }, "EnvironmentNotFound"},
	} {
		if got := row.do(); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}
