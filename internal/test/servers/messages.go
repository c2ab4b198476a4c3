package servers

// PostgresArgs asks for a PostgreSQL, by one of the methods
//
//	BestPostgres       this machine's binaries, else a container, else downloaded binaries; for tests of logic
//	ContainerPostgres  in a container of Image, for tests of logic
//	OwnPostgres        this machine's binaries, with Settings, to be stopped and killed
//	StandbyPostgres    a standby of the server Primary, with Settings
type PostgresArgs struct {
	Image    string
	Settings map[string]string
	Primary  int
}

// PostgresReply is a server that runs. ID names it in later calls.
type PostgresReply struct {
	Missing     string // why the machine cannot give such a server; "" where it can
	Docker      bool   // with another Docker, or without one, the reply might have been another
	ID          int
	DSN, BinDir string
}

// DoArgs asks for something to be done to a server, by Postgres or Kafka. Verb is one of those below.
type DoArgs struct {
	ID   int
	Verb string
	Node int // one broker of a cluster, from 1 on; 0 is all
}

// Verbs of DoArgs. End and Kill are for both servers, StopFast, Restart and Promote for PostgreSQL, the others for Kafka.
const (
	End         = "stop" // for good
	Kill        = "kill"
	Pause       = "pause"
	Unpause     = "unpause"
	StopFast    = "stop fast"
	Restart     = "restart"
	Promote     = "promote"
	StopBroker  = "stop broker"
	StartBroker = "start broker"
)

// DoReply is empty.
type DoReply struct{}

// BouncerArgs asks for a PgBouncer before the server at Target, in transaction pooling unless Settings say otherwise.
type BouncerArgs struct {
	Target, User, Password string
	PoolSize, MaxClients   int
	Settings               map[string]string // lines of pgbouncer.ini, by name
}

// BouncerReply says where it listens.
type BouncerReply struct {
	Missing string // why the machine cannot give such a server; "" where it can
	Address string
}

// KafkaArgs asks for a Kafka, by one of the methods
//
//	InProcessKafka  the imitation, which is up in a millisecond
//	ContainerKafka  Apache Kafka in a container, with Settings and Brokers and nothing else
//	SharedKafka     Apache Kafka in a container, which all test binaries of a go test share; without an ID
type KafkaArgs struct {
	// Settings are the brokers', by Kafka's names.
	Settings map[string]string
	// Brokers is how many containers are one cluster: 1 or 3; 0 is one.
	Brokers int
	Imitation
}

// Imitation is how the imitation of Kafka is made. The zero value is one broker without topics, open to everybody.
type Imitation struct {
	Nodes  int            // brokers; 0 is one
	Create bool           // topics make themselves, as by Kafka's default
	Topics map[string]int // topics that are there, with their partitions, whose leaders take turns among the brokers

	Certificate, Key          []byte // for TLS, in PEM
	Mechanism, User, Password string // who is let in, by SASL: "PLAIN", "SCRAM-SHA-256"
}

// DeleteArgs asks, by the method DeleteRecords, for the log of a partition to begin at Offset, on any cluster.
type DeleteArgs struct {
	Brokers   []string
	Topic     string
	Partition int
	Offset    int64
}

// KafkaReply is a server that runs. ID names it in later calls.
type KafkaReply struct {
	Missing string // why the machine cannot give such a server; "" where it can
	Docker  bool   // with another Docker, or without one, the reply might have been another
	ID      int
	Brokers []string
}

// ConnectionsReply says how many connections of clients an imitation has open. Connections is the method's name, and its
// arguments are a DoArgs without a Verb.
type ConnectionsReply struct{ Open int64 }
