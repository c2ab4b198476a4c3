package kafkaserver

import "testing"

func TestEnv_SettingsBecomeTheImagesVariables(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{
		"message.max.bytes": "KAFKA_MESSAGE_MAX_BYTES",
		"a.b_c-d":           "KAFKA_A_B__C___D",
		"KAFKA_OPTS":        "KAFKA_OPTS",
	} {
		if got := envName(setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
}

func TestEnv_ACallersSettingWinsOverTheDefault(t *testing.T) {
	t.Parallel()
	env := brokerEnv(brokerSettings("127.0.0.1:1"), map[string]string{"auto.create.topics.enable": "true"})
	if got := env["KAFKA_AUTO_CREATE_TOPICS_ENABLE"]; got != "true" {
		t.Errorf("it is %q", got)
	}
}
