package identities

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/registry"
)

const secret = "token-that-must-not-be-shown"

// service is a stand-in of a token service: it answers as told, and keeps what it was asked.
type service struct {
	*httptest.Server
	status int
	body   string
	asked  []*http.Request
	forms  []string
}

func newService(t *testing.T) *service {
	s := &service{status: http.StatusOK}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s.asked, s.forms = append(s.asked, r), append(s.forms, string(b))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(s.status)
		_, _ = io.WriteString(w, s.body)
	}))
	t.Cleanup(s.Close)
	return s
}

// refused checks the failure of a login.
func refused(t *testing.T, err error, class muster.FailureClass, says ...string) {
	t.Helper()
	var f *muster.Failure
	if !errors.As(err, &f) || f.Class != class {
		t.Errorf("%v: want a failure of class %s", err, class)
		return
	}
	for _, s := range says {
		if !strings.Contains(f.Message, s) {
			t.Errorf("%s: it does not say %q", f.Message, s)
		}
	}
	if strings.Contains(f.Message, secret) {
		t.Errorf("it tells the secret: %s", f.Message)
	}
}

const hostOfECR = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"

func standECR(s *service) *ecr {
	return &ecr{host: hostOfECR, region: "eu-central-1", endpoint: s.URL + "/", http: httpClient(),
		now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) },
		credentials: func(context.Context, string) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: secret, SessionToken: "session", Source: "EC2RoleProvider"}, nil
		}}
}

// The call is the one that AWS documents, signed for ECR in the region of the host.
func TestECR(t *testing.T) {
	s := newService(t)
	s.body = `{"authorizationData":[{"authorizationToken":"` + base64.StdEncoding.EncodeToString([]byte("AWS:"+secret)) + `","expiresAt":1.7E9,"proxyEndpoint":"https://` + hostOfECR + `"}]}`
	login, err := standECR(s).login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if login.Username != "AWS" || login.Password.Reveal() != secret || login.Until.Unix() != 1_700_000_000 || login.Who != "the identity of access key AKIDEXAMPLE (EC2RoleProvider)" {
		t.Errorf("%+v", login)
	}
	r := s.asked[0]
	wire := fmt.Sprintf("%s %s\n%s\n%s\n%s\n%s\n%s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("X-Amz-Target"),
		r.Header.Get("X-Amz-Date"), strings.Split(r.Header.Get("Authorization"), ", Signature=")[0], s.forms[0])
	want := `POST /
application/x-amz-json-1.1
AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken
20260102T030405Z
AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260102/eu-central-1/ecr/aws4_request, SignedHeaders=content-length;content-type;host;x-amz-date;x-amz-security-token;x-amz-target
{}`
	if wire != want {
		t.Errorf("sent\n%s\nwant\n%s", wire, want)
	}
}

func TestECRRefuses(t *testing.T) {
	s := newService(t)
	for _, x := range []struct {
		status int
		body   string
		class  muster.FailureClass
		says   []string
	}{
		{400, `{"__type":"AccessDeniedException","Message":"User: arn:aws:iam::1:role/x is not authorized to perform: ecr:GetAuthorizationToken on resource: *"}`, muster.FailureUser,
			[]string{hostOfECR, "access key AKIDEXAMPLE", "ecr:GetAuthorizationToken; allow it", "arn:aws:iam::1:role/x"}},
		{400, `{"__type":"com.amazonaws#ThrottlingException","message":"Rate exceeded"}`, muster.FailureOutside, []string{hostOfECR, "ThrottlingException"}},
		{400, `{"__type":"ExpiredTokenException","message":"The security token is expired"}`, muster.FailureUser, []string{"ExpiredTokenException", "expired"}},
		{403, `nonsense`, muster.FailureUser, []string{"does not accept"}},
		{503, ``, muster.FailureOutside, []string{"503"}},
		{200, `{}`, muster.FailureOutside, []string{"without a login"}},
		{200, `{"authorizationData":[{"authorizationToken":"!"}]}`, muster.FailureOutside, []string{"cannot be read"}},
	} {
		s.status, s.body = x.status, x.body
		_, err := standECR(s).login(t.Context())
		refused(t, err, x.class, x.says...)
	}
	s.Close()
	_, err := standECR(s).login(t.Context())
	refused(t, err, muster.FailureOutside, "eu-central-1 cannot be reached")
	none := standECR(s)
	none.credentials = func(context.Context, string) (aws.Credentials, error) {
		return aws.Credentials{}, errors.New("no role")
	}
	_, err = none.login(t.Context())
	refused(t, err, muster.FailureUser, hostOfECR, "no credentials of AWS", "no role")
}

// The place of the service follows from the host of the registry, and no other host gets a login.
func TestHostsOfECR(t *testing.T) {
	for _, host := range []string{hostOfECR, "123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "123456789012.dkr-ecr.eu-west-1.on.aws"} {
		if _, err := newECR(host); err != nil {
			t.Error(err)
		}
	}
	for _, host := range []string{"public.ecr.aws", "1.dkr.ecr.eu-west-1.amazonaws.com", hostOfECR + ".example.org", "x." + hostOfECR} {
		if _, err := Open(&api.RegistrySpec{Host: host, Identity: api.IdentityECR}); err == nil {
			t.Errorf("%s gets a login of ECR", host)
		}
	}
	if _, err := Open(&api.RegistrySpec{Host: "a.b", Identity: "oracle"}); err == nil {
		t.Error("an unknown identity is opened")
	}
}

// keyFile writes the key of a service account whose tokens come from s.
func keyFile(t *testing.T, s *service) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "puller@team.iam.gserviceaccount.com", "private_key_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": s.URL + "/token"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
}

func open(t *testing.T, host, kind string) registry.Identity {
	t.Helper()
	identity, err := Open(&api.RegistrySpec{Host: host, Identity: kind})
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func TestServiceAccountOfGoogle(t *testing.T) {
	s := newService(t)
	keyFile(t, s)
	login := open(t, "europe-docker.pkg.dev", api.IdentityGCP)
	s.body = `{"access_token":"` + secret + `","token_type":"Bearer","expires_in":3600}`
	l, err := login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(l.Until); l.Username != "oauth2accesstoken" || l.Password.Reveal() != secret || left < 59*time.Minute || left > time.Hour || l.Who != "service account puller@team.iam.gserviceaccount.com" {
		t.Errorf("%+v, left %s", l, left)
	}
	form := s.forms[0]
	if !strings.Contains(form, "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer") || s.asked[0].URL.Path != "/token" {
		t.Errorf("%s %s", s.asked[0].URL.Path, form)
	}
	var of struct{ Iss, Scope string }
	_, assertion, _ := strings.Cut(form, "assertion=")
	assertion, _, _ = strings.Cut(assertion, "&")
	if err := claims(assertion, &of); err != nil || of.Iss != "puller@team.iam.gserviceaccount.com" || of.Scope != scopeGCP {
		t.Errorf("%+v %v", of, err)
	}
	s.status, s.body = 400, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`
	_, err = login(t.Context())
	refused(t, err, muster.FailureUser, "europe-docker.pkg.dev", "puller@team.iam", "invalid_grant", "Signature")
	for _, status := range []int{429, 503} {
		s.status, s.body = status, `{}`
		_, err = login(t.Context())
		refused(t, err, muster.FailureOutside, "puller@team.iam", fmt.Sprint(status))
	}
	s.Close()
	_, err = login(t.Context())
	refused(t, err, muster.FailureOutside, "cannot be reached")
}

func TestMachineOfGoogle(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		switch {
		case r.Header.Get("Metadata-Flavor") != "Google":
			w.WriteHeader(http.StatusForbidden)
		case strings.HasSuffix(r.URL.Path, "/email"):
			_, _ = io.WriteString(w, "vm@team.iam.gserviceaccount.com")
		case strings.HasSuffix(r.URL.Path, "/token"):
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"access_token":"`+secret+`","token_type":"Bearer","expires_in":1800}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(s.URL, "http://"))
	login := open(t, "gcr.io", api.IdentityGCP)
	l, err := login(t.Context())
	if err != nil || l.Password.Reveal() != secret || l.Who != "service account vm@team.iam.gserviceaccount.com" {
		t.Fatalf("%+v %v", l, err)
	}
	status = http.StatusForbidden
	_, err = login(t.Context())
	refused(t, err, muster.FailureUser, "gcr.io", "vm@team.iam", "403")
}

// jwt is a token with these claims; nobody here checks its signature.
func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." + secret
}

// standAzure has the identity of an App Service, whose endpoint is a stand-in, and a registry.
func standAzure(t *testing.T) (login registry.Identity, entra, acr *service) {
	entra, acr = newService(t), newService(t)
	for _, name := range []string{"AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"} {
		t.Setenv(name, "") // puts it back after the test
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
	// The library keeps tokens by their identity for the life of the process.
	t.Setenv("AZURE_CLIENT_ID", entra.URL)
	t.Setenv("IDENTITY_ENDPOINT", entra.URL+"/msi")
	t.Setenv("IDENTITY_HEADER", "header")
	entra.body = `{"access_token":"` + jwt(`{"appid":"app-1","oid":"object-1"}`) + `","expires_on":"` + fmt.Sprint(time.Now().Add(time.Hour).Unix()) + `","resource":"x","token_type":"Bearer"}`
	of := newAzureAt("team.azurecr.io", acr.URL)
	return of.login, entra, acr
}

func TestAzure(t *testing.T) {
	login, entra, acr := standAzure(t)
	ends := time.Now().Add(3 * time.Hour).Unix()
	acr.body = `{"refresh_token":"` + jwt(fmt.Sprintf(`{"exp":%d}`, ends)) + `"}`
	l, err := login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if l.Refresh.Reveal() != jwt(fmt.Sprintf(`{"exp":%d}`, ends)) || l.Until.Unix() != ends || l.Who != "the identity in Azure with object id object-1 (client id app-1)" {
		t.Errorf("%+v", l)
	}
	if q := entra.asked[0].URL.Query(); q.Get("resource") != "https://containerregistry.azure.net" || entra.asked[0].URL.Path != "/msi" {
		t.Errorf("%s", entra.asked[0].URL)
	}
	want := "access_token=" + jwt(`{"appid":"app-1","oid":"object-1"}`) + "&grant_type=access_token&service=team.azurecr.io"
	if acr.asked[0].Method != http.MethodPost || acr.asked[0].URL.Path != "/oauth2/exchange" || acr.forms[0] != want {
		t.Errorf("%s %s %s", acr.asked[0].Method, acr.asked[0].URL, acr.forms[0])
	}
}

func TestAzureRefuses(t *testing.T) {
	login, _, acr := standAzure(t)
	for _, x := range []struct {
		status int
		body   string
		class  muster.FailureClass
		says   []string
	}{
		{401, `{}`, muster.FailureUser, []string{"team.azurecr.io", "object-1", "AcrPull"}},
		{403, `{}`, muster.FailureUser, []string{"AcrPull"}},
		{404, `{}`, muster.FailureUser, []string{"404"}},
		{429, `{}`, muster.FailureOutside, []string{"429"}},
		{502, `{}`, muster.FailureOutside, []string{"502"}},
		{200, `{}`, muster.FailureOutside, []string{"without a login"}},
	} {
		acr.status, acr.body = x.status, x.body
		_, err := login(t.Context())
		refused(t, err, x.class, x.says...)
	}
	acr.Close()
	_, err := login(t.Context())
	refused(t, err, muster.FailureOutside, "cannot be reached")
}

func TestEntraRefuses(t *testing.T) {
	login, entra, _ := standAzure(t)
	entra.status, entra.body = 400, `{"message":"no identity `+secret+`"}`
	_, err := login(t.Context())
	refused(t, err, muster.FailureUser, "team.azurecr.io")
}
