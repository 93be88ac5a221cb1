package cli

import "testing"

func TestCoresAreReadAsKubernetesWritesThem(t *testing.T) {
	for in, want := range map[string]float64{"0.5": 0.5, "500m": 0.5, "2": 2, "1500m": 1.5, "0": 0} {
		var v float64
		if err := (*cores)(&v).Set(in); err != nil || v != want {
			t.Errorf("%q: %g, %v", in, v, err)
		}
	}
	for _, in := range []string{"", "m", "500x", "1 core", "NaN", "Inf", "500mm"} {
		var v float64
		if err := (*cores)(&v).Set(in); err == nil {
			t.Errorf("%q is read as %g", in, v)
		}
	}
}
