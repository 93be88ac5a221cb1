package operators

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// offeringCommand makes muster offering, with what is below it.
func offeringCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "offering", Aliases: []string{"offerings"}, Short: "List what could be launched", Long: "List what could be launched.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(offeringListCommand(a))
	return c
}

// offeringListCommand makes muster offering list. Several pools may use the same offerings, so each
// is printed once.
func offeringListCommand(a *cli.App) *cobra.Command {
	pool := ""
	c := a.ClientCommand("list", "List the offerings that pools may launch, with prices", `Prints what the pools could launch now, the cheapest first: resources, price per hour, per core and per GiB of memory, and whether it is available. What a provider refused is blocked for a time, and the last columns say until when and why.`,
		cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
			offers, err := offersOf(ctx, cl, pool)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(offers)
			}
			if len(offers) == 0 {
				fmt.Fprintln(a.Stdout, "no offerings; `muster provider check NAME --dry-run` says why a provider has none")
				return nil
			}
			a.PrintTable([]string{"OFFERING", "PROVIDER", "ZONE", "MARKET", "CPU", "MEMORY", "PRICE/H", "PER CORE", "PER GIB", "AVAILABLE", "WHY NOT"}, offerRows(offers, time.Now()))
			return nil
		})
	c.Flags().StringVar(&pool, "pool", "", "only those of this pool (default: all pools)")
	return c
}

// offersOf are the offerings of one pool, or of all, each once, the cheapest first.
func offersOf(ctx context.Context, cl *client.Client, pool string) ([]api.PoolOffer, error) {
	names := []string{pool}
	if pool == "" {
		list, err := cl.Pools(ctx)
		if err != nil {
			return nil, err
		}
		names = nil
		for i := range list.Pools {
			names = append(names, list.Pools[i].Name)
		}
	}
	out := []api.PoolOffer{}
	seen := map[[4]string]bool{}
	for _, name := range names {
		p, err := cl.Pool(ctx, muster.PoolName(name))
		if err != nil {
			return nil, poolHint(err)
		}
		for _, o := range p.Offers {
			key := [4]string{o.Provider, o.Offering, o.Zone, o.Market}
			if !seen[key] {
				seen[key] = true
				out = append(out, o)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b api.PoolOffer) int { return cmp.Compare(a.Price, b.Price) })
	return out, nil
}

// offerRows are the rows of the table.
func offerRows(offers []api.PoolOffer, now time.Time) (rows [][]string) {
	for _, o := range offers {
		available, why := "yes", ""
		switch {
		case o.Blocked != nil && !o.Blocked.Over:
			available, why = "in "+term.Brief(o.Blocked.Until.Sub(now)), term.OneLine(o.Blocked.Why)
		case o.Blocked != nil:
			available, why = "to be tried", term.OneLine(o.Blocked.Why)
		case !o.Available:
			available, why = "no", "the provider has none now"
		}
		rows = append(rows, []string{o.Offering, o.Provider, cmp.Or(o.Zone, "-"), o.Market, fmt.Sprintf("%g", o.CPU), o.Memory.String(),
			fmt.Sprintf("%.4f", o.Price), fmt.Sprintf("%.4f", o.PerCore), fmt.Sprintf("%.4f", o.PerGiB), available, why})
	}
	return rows
}
