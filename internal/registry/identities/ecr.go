package identities

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/registry"
)

// hostECR are the hosts of private registries: of an account in a region, in both forms of names.
// https://docs.aws.amazon.com/general/latest/gr/ecr.html
var hostECR = regexp.MustCompile(`^(\d{12})\.dkr[.-](ecr(?:-fips)?)\.([a-z0-9-]+)\.(amazonaws\.com|amazonaws\.com\.cn|on\.aws)$`)

// ecr asks Amazon ECR for an authorization token. It opens what the identity may read in all
// registries of the region, for 12 hours; there is none for one repository.
type ecr struct {
	host, region, endpoint string
	http                   *http.Client
	// credentials are looked up for each login.
	credentials func(ctx context.Context, region string) (aws.Credentials, error)
	now         func() time.Time
}

func newECR(host string) (registry.Identity, error) {
	m := hostECR.FindStringSubmatch(host)
	if m == nil {
		return nil, fmt.Errorf("%s is no private registry of Amazon ECR, as 123456789012.dkr.ecr.eu-central-1.amazonaws.com", host)
	}
	service, region, domain := m[2], m[3], m[4]
	endpoint := "https://api." + service + "." + region + "." + domain + "/"
	switch {
	case domain == "on.aws":
		endpoint = "https://" + service + "." + region + ".api.aws/"
	case service == "ecr-fips":
		endpoint = "https://ecr-fips." + region + "." + domain + "/"
	}
	return (&ecr{host: host, region: region, endpoint: endpoint, http: httpClient(), credentials: findAWS, now: time.Now}).login, nil
}

// findAWS finds credentials as all tools of AWS do: in the environment, in ~/.aws, or by the
// machine's role.
func findAWS(ctx context.Context, region string) (aws.Credentials, error) {
	loaded, err := config.LoadDefaultConfig(ctx, config.WithRegion(region), config.WithLogger(logging.NewStandardLogger(io.Discard)))
	if err != nil {
		return aws.Credentials{}, err
	}
	return loaded.Credentials.Retrieve(ctx)
}

// login calls GetAuthorizationToken.
// https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_GetAuthorizationToken.html
func (e *ecr) login(ctx context.Context) (registry.Login, error) {
	credentials, err := e.credentials(ctx, e.region)
	if err != nil {
		return registry.Login{}, notFound(ctx, e.host, "credentials of AWS (set them in the environment or in ~/.aws, or give the machine a role)", err)
	}
	who := "the identity of access key " + credentials.AccessKeyID
	if credentials.Source != "" {
		who += " (" + credentials.Source + ")"
	}
	body := []byte("{}")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.endpoint, bytes.NewReader(body))
	if err != nil {
		return registry.Login{}, err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
	hash := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(ctx, credentials, req, hex.EncodeToString(hash[:]), "ecr", e.region, e.now()); err != nil {
		return registry.Login{}, registry.Outside("registry %s: the call of Amazon ECR cannot be signed: %v", e.host, err)
	}
	status, text, err := answer(e.http, req)
	if err != nil {
		return registry.Login{}, registry.Outside("registry %s: Amazon ECR in %s cannot be reached for a login: %s", e.host, e.region, words(err.Error()))
	}
	if status != http.StatusOK {
		return registry.Login{}, e.refusal(status, text, who)
	}
	var out struct {
		Data []struct {
			Token   string  `json:"authorizationToken"`
			Expires float64 `json:"expiresAt"` // seconds since 1970
		} `json:"authorizationData"`
	}
	if err := json.Unmarshal(text, &out); err != nil || len(out.Data) == 0 {
		return registry.Login{}, registry.Outside("registry %s: Amazon ECR answers without a login", e.host)
	}
	pair, err := base64.StdEncoding.DecodeString(out.Data[0].Token)
	username, password, ok := strings.Cut(string(pair), ":")
	if err != nil || !ok || password == "" {
		return registry.Login{}, registry.Outside("registry %s: Amazon ECR answers with a login that cannot be read", e.host)
	}
	return registry.Login{Username: username, Password: muster.NewSecret(password), Until: time.Unix(int64(out.Data[0].Expires), 0), Who: who}, nil
}

// refusal is what ECR's answer means. AWS names the identity and the right in it.
func (e *ecr) refusal(status int, text []byte, who string) error {
	code := says(text, "__type")
	if _, after, ok := strings.Cut(code, "#"); ok {
		code = after
	}
	said := says(text, "message", "Message")
	switch {
	case strings.Contains(code, "Throttl"), code == "RequestLimitExceeded", unavailable(status):
		return registry.Outside("registry %s: Amazon ECR gives no login now: status %d %s", e.host, status, code)
	case strings.Contains(code, "AccessDenied"):
		return registry.NoAccess("registry %s: %s has no right to ecr:GetAuthorizationToken; allow it, on resource *: %s", e.host, who, said)
	}
	// Expired and unknown credentials, and clocks that differ: AWS says which.
	return registry.NoAccess("registry %s: Amazon ECR does not accept %s: %s %s", e.host, who, code, said)
}
