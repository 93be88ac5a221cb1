package ec2

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

const (
	apiVersion = "2016-11-15"
	// maxAnswer bounds an answer; maxMessage what an error keeps of EC2's own text, of which an encoded
	// authorization message is the longest.
	maxAnswer, maxMessage = 64 << 20, 4 << 10
)

// client makes one signed call at a time and never repeats one.
type client struct {
	http        *http.Client
	signer      *v4.Signer
	credentials aws.CredentialsProvider
	region      string
	now         func() time.Time
	provider    muster.ProviderName
	// lacking says what to do where there are no credentials.
	lacking string

	ec2, ssm, pricing service

	slow sync.Map // *driver.Slowdown by action
}

// service is where one service of AWS is and how its calls are signed.
type service struct{ url, name, region string }

// endpoints fills in the addresses of the services.
func (c *client) endpoints(own string) {
	suffix, pricing := "amazonaws.com", "us-east-1"
	switch {
	case strings.HasPrefix(c.region, "cn-"):
		suffix, pricing = "amazonaws.com.cn", "cn-northwest-1"
	case strings.HasPrefix(c.region, "us-gov-"):
		pricing = "" // the price list is not served there
	case strings.HasPrefix(c.region, "eu-"):
		pricing = "eu-central-1"
	case strings.HasPrefix(c.region, "ap-"):
		pricing = "ap-south-1"
	}
	c.ec2 = service{"https://ec2." + c.region + "." + suffix + "/", "ec2", c.region}
	c.ssm = service{"https://ssm." + c.region + "." + suffix + "/", "ssm", c.region}
	if pricing != "" {
		c.pricing = service{"https://api.pricing." + pricing + "." + suffix + "/", "pricing", pricing}
	}
	if own == "" {
		return
	}
	c.ec2.url = own
	if u, err := url.Parse(own); err == nil && !strings.Contains(u.Hostname(), ".amazonaws.com") {
		c.ssm.url, c.pricing = own, service{own, "pricing", c.region}
	}
}

// call is one call: what it asks for, what it does, and for which offering.
type call struct {
	action string
	form   url.Values
	effect driver.Effect
	about  about
	sent   time.Time // when it was sent
}

// about is what a call is for, for the scope of its fault.
type about struct {
	offering muster.OfferingName
	zone     string
	market   muster.Market
}

// do makes a call of EC2 and reads its answer into out, which has the fields of the answer's root.
func (c *client) do(ctx context.Context, q call, out any) error {
	q.sent = time.Now()
	q.form.Set("Action", q.action)
	q.form.Set("Version", apiVersion)
	status, body, err := c.send(ctx, c.ec2, q, "application/x-www-form-urlencoded; charset=utf-8", "", []byte(q.form.Encode()))
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		code, message := xmlError(body)
		return c.refused(q, status, code, message)
	}
	if err := readAnswer(body, q.action, out); err != nil {
		return &muster.Fault{Kind: q.effect.Unclear(), Message: c.named(q.action) + ": the answer cannot be read", Err: err}
	}
	c.slowdown(q.action).Succeeded()
	return nil
}

// readAnswer reads XML that must be whole and be the answer of that action.
func readAnswer(body []byte, action string, out any) error {
	if list, ok := out.(*instancesAnswer); ok && action == "DescribeInstances" {
		read, err := readInstances(body)
		if err == nil {
			*list = *read
		}
		return err
	}
	return decodeAnswer(body, action, out)
}

// decodeAnswer is readAnswer by encoding/xml.
func decodeAnswer(body []byte, action string, out any) error {
	d := xml.NewDecoder(bytes.NewReader(body))
	for {
		t, err := d.Token()
		if err != nil {
			return err
		}
		if start, ok := t.(xml.StartElement); ok {
			if start.Name.Local != action+"Response" {
				return fmt.Errorf("it begins with <%s>", muster.Truncate(start.Name.Local, 100))
			}
			if out == nil {
				return d.Skip()
			}
			return d.DecodeElement(out, &start)
		}
	}
}

// doJSON makes a call of a service that speaks JSON 1.1, and reads the answer into out.
func (c *client) doJSON(ctx context.Context, s service, target string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, action, _ := strings.Cut(target, ".")
	q := call{action: action, effect: driver.Reads, sent: time.Now()}
	status, answer, err := c.send(ctx, s, q, "application/x-amz-json-1.1", target, body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		var e struct {
			Type    string `json:"__type"`
			Message string `json:"message"`
			Upper   string `json:"Message"`
		}
		_ = json.Unmarshal(answer, &e)
		_, code, found := strings.Cut(e.Type, "#")
		if !found {
			code = e.Type
		}
		if e.Message == "" {
			e.Message = e.Upper
		}
		return c.refused(q, status, code, e.Message)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return &muster.Fault{Kind: muster.FaultTransient, Message: c.named(action) + ": the answer cannot be read", Err: err}
	}
	c.slowdown(action).Succeeded()
	return nil
}

// send signs and sends, and reads the answer to its end.
func (c *client) send(ctx context.Context, s service, q call, kind, target string, body []byte) (int, []byte, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, &muster.Fault{Kind: muster.FaultTransient, Message: c.named(q.action) + ": not sent", Err: err}
	}
	traced, sent := driver.Trace(ctx)
	r, err := http.NewRequestWithContext(traced, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, &muster.Fault{Kind: muster.FaultInvalid, Field: "endpoint", Message: c.named(q.action), Err: err}
	}
	r.Header.Set("Content-Type", kind)
	if target != "" {
		r.Header.Set("X-Amz-Target", target)
	}
	credentials, err := c.credentials.Retrieve(ctx)
	if err != nil {
		f := &muster.Fault{Kind: muster.FaultAuth, Message: c.named(q.action) + ": no credentials: " + c.lacking, Err: err}
		if ctx.Err() != nil {
			f.Kind, f.Message = muster.FaultTransient, c.named(q.action)+": not sent"
		}
		return 0, nil, f
	}
	hash := sha256.Sum256(body)
	if err := c.signer.SignHTTP(ctx, credentials, r, hex.EncodeToString(hash[:]), s.name, s.region, c.now()); err != nil {
		return 0, nil, &muster.Fault{Kind: muster.FaultAuth, Message: c.named(q.action) + ": cannot be signed", Err: err}
	}
	answer, err := c.http.Do(r)
	if err != nil {
		f := sent.Fault(c.named(q.action), q.effect, err)
		if unknown := (*net.DNSError)(nil); errors.As(err, &unknown) && unknown.IsNotFound {
			f.Message += fmt.Sprintf(": %s has no address: check the spelling of region %s, and the DNS of this server", unknown.Name, c.region)
		}
		return 0, nil, f
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("it has more than %d bytes", maxAnswer)
	}
	if err != nil {
		return 0, nil, sent.Fault(c.named(q.action), q.effect, err)
	}
	return answer.StatusCode, text, nil
}

func (c *client) named(action string) string { return string(c.provider) + " " + action }

func (c *client) slowdown(action string) *driver.Slowdown {
	if s, ok := c.slow.Load(action); ok {
		return s.(*driver.Slowdown)
	}
	s, _ := c.slow.LoadOrStore(action, &driver.Slowdown{})
	return s.(*driver.Slowdown)
}

// xmlError reads the code and the text of an error; both are empty if it is none of EC2's.
func xmlError(body []byte) (code, message string) {
	var e struct {
		XMLName xml.Name `xml:"Response"`
		Errors  []struct {
			Code    string `xml:"Code"`
			Message string `xml:"Message"`
		} `xml:"Errors>Error"`
	}
	if err := xml.Unmarshal(body, &e); err != nil || len(e.Errors) == 0 {
		return "", ""
	}
	return e.Errors[0].Code, e.Errors[0].Message
}

// codeOf is EC2's code of an error that refused a call; empty if EC2 has not.
func codeOf(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.code
	}
	return ""
}

// refusal is what EC2 answered.
type refusal struct{ code, message string }

func (r *refusal) Error() string { return r.code + ": " + r.message }
