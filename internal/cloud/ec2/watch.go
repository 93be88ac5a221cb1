package ec2

import (
	"context"
	"net/url"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// spotLead is how long a spot instance runs on after EC2 has said that it takes it.
const spotLead = 2 * time.Minute

// spotRequestsAnswer is that of DescribeSpotInstanceRequests.
type spotRequestsAnswer struct {
	Requests []struct {
		Instance string    `xml:"instanceId"`
		Code     string    `xml:"status>code"`
		At       time.Time `xml:"status>updateTime"`
	} `xml:"spotInstanceRequestSet>item"`
	Next string `xml:"nextToken"`
}

// takenCodes say that EC2 takes the instance. With the behaviour terminate, the request is in its
// last state at once, while the instance runs on for two minutes.
var takenCodes = []string{"marked-for-termination", "instance-terminated-no-capacity", "instance-terminated-capacity-oversubscribed",
	"instance-terminated-by-price", "instance-terminated-launch-group-constraint"}

// Notices is cloud.NoticeReader's. It is one call, and none where no spot instances are launched.
func (p *Provider) Notices(ctx context.Context) ([]cloud.Notice, error) {
	if !p.wants(muster.Spot) {
		return nil, nil
	}
	form := url.Values{}
	filter(form, "tag:"+driver.TagOwner, p.cfg.Owner)
	filter(form, "status-code", takenCodes...)
	var out []cloud.Notice
	now := p.cfg.Now()
	err := each(ctx, p, "DescribeSpotInstanceRequests", form, maxPage, func(a *spotRequestsAnswer) string {
		for _, r := range a.Requests {
			id := muster.InstanceID(r.Instance)
			known, ok := p.instances.get(id)
			// Requests are listed for two days after their instances are gone.
			if id == "" || r.At.IsZero() || now.Sub(r.At) > 2*spotLead || ok && ended(known.state) {
				continue
			}
			out = append(out, cloud.Notice{Instance: id, At: muster.At(r.At.Add(spotLead)), Kind: cloud.NoticeTaken})
		}
		return a.Next
	})
	return out, err
}

// volumesAnswer is that of DescribeVolumes.
type volumesAnswer struct {
	Volumes []struct {
		ID      string    `xml:"volumeId"`
		State   string    `xml:"status"`
		Created time.Time `xml:"createTime"`
		Tags    []wireTag `xml:"tagSet>item"`
	} `xml:"volumeSet>item"`
	Next string `xml:"nextToken"`
}

const volumeKind = "volume"

// Leftovers is cloud.Sweeper's. Volumes are all that can stay: network interfaces and addresses go
// with their instance.
func (p *Provider) Leftovers(ctx context.Context) ([]cloud.Leftover, error) {
	return p.volumes(ctx, nil)
}

// volumes are those of the owner that are attached to nothing; of these ids if there are any.
func (p *Provider) volumes(ctx context.Context, ids []string) ([]cloud.Leftover, error) {
	form := url.Values{}
	filter(form, "tag:"+driver.TagOwner, p.cfg.Owner)
	filter(form, "status", "available")
	if len(ids) > 0 {
		filter(form, "volume-id", ids...)
	}
	var out []cloud.Leftover
	err := each(ctx, p, "DescribeVolumes", form, maxPage/2, func(a *volumesAnswer) string {
		for _, v := range a.Volumes {
			owner := ""
			for _, t := range v.Tags {
				if t.Key == driver.TagOwner {
					owner = t.Value
				}
			}
			if owner != p.cfg.Owner || v.State != "available" || v.ID == "" {
				continue
			}
			left := cloud.Leftover{Kind: volumeKind, ID: v.ID}
			if !v.Created.IsZero() {
				left.Created = muster.At(v.Created)
			}
			out = append(out, left)
		}
		return a.Next
	})
	return out, err
}

// Remove is cloud.Sweeper's.
func (p *Provider) Remove(ctx context.Context, of []cloud.Leftover) []error {
	errs := make([]error, len(of))
	for begin := 0; begin < len(of); begin += maxValues {
		part := of[begin:min(begin+maxValues, len(of))]
		var ids []string
		for _, l := range part {
			if l.Kind == volumeKind && l.ID != "" {
				ids = append(ids, l.ID)
			}
		}
		var there []cloud.Leftover
		var err error
		if len(ids) > 0 {
			there, err = p.volumes(ctx, ids)
		}
		free := map[string]bool{}
		for _, l := range there {
			free[l.ID] = true
		}
		for i, l := range part {
			switch {
			case l.Kind != volumeKind:
				errs[begin+i] = muster.Faultf(muster.FaultInvalid, "leftover %s: EC2 leaves volumes only, and this is a %s", l.ID, l.Kind)
			case err != nil:
				errs[begin+i] = err
			case free[l.ID]:
				errs[begin+i] = p.removeVolume(ctx, l.ID)
			}
			// Otherwise it is gone, or attached again, or not the owner's: there is nothing to remove.
		}
	}
	return errs
}

func (p *Provider) removeVolume(ctx context.Context, id string) error {
	err := p.api.do(ctx, call{action: "DeleteVolume", form: url.Values{"VolumeId": {id}}, effect: driver.Reads}, nil)
	if codeOf(err) == codeVolumeNotFound {
		return nil
	}
	return err
}
