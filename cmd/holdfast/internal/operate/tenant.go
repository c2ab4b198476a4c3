package operate

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/tenant"
)

// Tenant is holdfast tenant.
type Tenant struct {
	Export tenantExportCmd `cmd:"" help:"Print all that this database has of a tenant, as JSON lines."`
	Erase  TenantErase     `cmd:"" help:"Erase all that this database has of a tenant."`
}

// TenantFlags say whose rows are meant.
type TenantFlags struct {
	Tenant    string `arg:"" help:"The tenant: what the header says, or the key before the separator."`
	Header    string `help:"Name of the header that says whose an event is." default:"tenant"`
	Separator string `help:"What ends the tenant's name in a key, a source or an entity." default:"/"`
}

// open returns what works on tenants, until done is called.
func (f TenantFlags) open(p *program.Program) (t *tenant.Tenants, done func(), err error) {
	pool, err := p.Pool()
	if err != nil {
		return nil, nil, err
	}
	t, err = tenant.New(pool, tenant.Config{
		Schema:    p.Database.Schema,
		Header:    f.Header,
		Separator: f.Separator,
	})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return t, pool.Close, nil
}

type tenantExportCmd struct {
	TenantFlags `embed:""`
}

func (c *tenantExportCmd) Run(p *program.Program) error {
	t, done, err := c.open(p)
	if err != nil {
		return err
	}
	defer done()
	out := bufio.NewWriter(p.Out)
	lines := json.NewEncoder(out)
	report, err := t.Export(p.Ctx, c.Tenant, func(r tenant.Record) error { return lines.Encode(r) })
	if err := errors.Join(err, out.Flush()); err != nil {
		return oneLineEach(err)
	}
	return sayTenant(p.ErrOut, report, "EXPORTED", func(at tenant.Place) int64 { return at.Found })
}

// TenantErase is holdfast tenant erase.
type TenantErase struct {
	TenantFlags    `embed:""`
	Acting         `embed:""`
	program.Asking `embed:""`
	Inbox          bool `help:"Also delete the rows by which consumers recognise repeats of settled events. A repeat that comes later is handled again."`
	DryRun         bool `help:"Print what would be erased, and change nothing."`
	JSON           bool `help:"Print the report as one JSON object." name:"json"`
}

// JSONTenant is the report of tenant erase --json.
type JSONTenant struct {
	Tenant string            `json:"tenant"`
	DryRun bool              `json:"dry_run"`
	Places []JSONTenantPlace `json:"places"`
	Beyond []string          `json:"beyond"` // what no statement reaches
}

type JSONTenantPlace struct {
	Place        string `json:"place"`
	Found        int64  `json:"found"`
	Erased       int64  `json:"erased"`
	Remains      int64  `json:"remains"`
	Why          string `json:"why,omitempty"`
	Unattributed int64  `json:"unattributed"`
}

func (te *TenantErase) Run(p *program.Program) error {
	if !te.DryRun {
		if err := te.checkReason(); err != nil {
			return err
		}
		if err := te.Ask(p, fmt.Sprintf("All that this database has of tenant %q is erased for good", te.Tenant)); err != nil {
			return err
		}
	}
	t, done, err := te.open(p)
	if err != nil {
		return err
	}
	defer done()
	line := progressLine{p: p, doing: "erasing", thing: "row"}
	rows, last, sofar := int64(0), "", int64(0)
	report, err := t.Erase(p.Ctx, te.Tenant, tenant.EraseOptions{
		DryRun: te.DryRun,
		Inbox:  te.Inbox,
		By:     te.by(),
		Reason: te.Reason,
		ProgressFunc: func(place string, erased int64) {
			if place != last {
				last, sofar = place, 0
			}
			rows, sofar = rows+erased-sofar, erased
			line.report(int(rows), 0)
		},
	})
	if err != nil {
		return oneLineEach(err)
	}
	if te.JSON {
		return json.NewEncoder(p.Out).Encode(asJSONTenant(report))
	}
	title := "ERASED"
	erased := func(at tenant.Place) int64 { return at.Erased }
	if te.DryRun {
		title, erased = "TO ERASE", func(at tenant.Place) int64 { return at.Found - at.Remains }
	}
	if err := sayTenant(p.Out, report, title, erased); err != nil {
		return err
	}
	for _, at := range report.Places {
		if at.Remains > 0 {
			fmt.Fprintf(p.Out, "%s in %s %s: %s\n", terminal.Count(at.Remains, "row"), at.Name, terminal.Verb(at.Remains, "remains", "remain"), at.Why)
		}
	}
	fmt.Fprintln(p.Out, "\nNot reached:")
	for _, text := range report.Beyond {
		fmt.Fprintln(p.Out, "- "+text)
	}
	return nil
}

// sayTenant prints what each table had, as far as there is something to say.
func sayTenant(out io.Writer, report tenant.Report, title string, of func(tenant.Place) int64) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "TABLE\t%s\tREMAIN\tOF NOBODY\n", title)
	for _, at := range report.Places {
		if at.Found+at.Erased+at.Remains+at.Unattributed > 0 {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", at.Name, of(at), at.Remains, at.Unattributed)
		}
	}
	return w.Flush()
}

func asJSONTenant(r tenant.Report) JSONTenant {
	j := JSONTenant{
		Tenant: r.Tenant,
		DryRun: r.DryRun,
		Places: []JSONTenantPlace{},
		Beyond: r.Beyond,
	}
	for _, at := range r.Places {
		j.Places = append(j.Places, JSONTenantPlace{at.Name, at.Found, at.Erased, at.Remains, at.Why, at.Unattributed})
	}
	return j
}
