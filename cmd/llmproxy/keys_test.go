package main

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestNewKey(t *testing.T) {
	key := newKey()
	secret, ok := strings.CutPrefix(key, "lp_")
	random, err := base64.RawURLEncoding.DecodeString(secret)
	if !ok || err != nil || len(random) != 32 {
		t.Errorf("the new key %q is not lp_ and 32 bytes in base64url: %v", key, err)
	}
	if newKey() == key {
		t.Error("two new keys are the same")
	}
	sum := sha256.Sum256([]byte(key))
	if want := fmt.Sprintf("sha256:%x", sum); hashKey(key) != want {
		t.Errorf("hashKey(%q) = %q, want %q", key, hashKey(key), want)
	}
	if got, ok := parseKeyHash(hashKey(key)); got != sum || !ok {
		t.Errorf("parseKeyHash(hashKey(%q)) = %x, %v; want %x", key, got, ok, sum)
	}
}

func TestParseKeyHashRefuses(t *testing.T) {
	digits := strings.Repeat("ab", 32)
	for _, hash := range []string{"", "sha256:", digits, "sha512:" + digits, "sha256:" + digits[1:], "sha256:" + digits + "ab",
		"sha256:" + strings.ToUpper(digits), "sha256:" + digits[:62] + "xy", " sha256:" + digits} {
		if _, ok := parseKeyHash(hash); ok {
			t.Errorf("%q is taken for the hash of a key", hash)
		}
	}
}

// TestConfigLineLoads puts the printed line under keys and reads it back.
func TestConfigLineLoads(t *testing.T) {
	for _, key := range []KeyConfig{
		{Name: "ci", Scopes: []string{"llm"}},
		{Name: "a: b", Tenant: "{x}", Step: "#1", Scopes: []string{"llm", "admin"}},
		{Name: "true", Tenant: "010", Step: "*", Scopes: []string{"admin"}},
		{Name: `"quoted"`, Tenant: "${HOME}", Step: "überprüfen", Scopes: []string{"llm"}},
		{Name: strings.Repeat("long name ", 12) + "end", Scopes: []string{"llm"}},
	} {
		if err := checkNewKey(key); err != nil {
			t.Errorf("the key %+v is refused: %v", key, err)
		}
		key.Hash = hashKey(newKey())
		line, err := configLine(key)
		if err != nil || strings.Contains(line, "\n") {
			t.Errorf("the line of %+v is %q, %v; want one line", key, line, err)
		}
		settings, err := parse(t, "keys:\n  "+line, nil)
		if err != nil || !reflect.DeepEqual(settings.Keys, []KeyConfig{key}) {
			t.Errorf("%s\nis read as %+v, %v; want %+v", line, settings.Keys, err, key)
		}
	}
}
