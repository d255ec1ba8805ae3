// Package stories tells the stories of tests/kafka_bridge with franz-go, the library in Go.
//
// BOOTSTRAP_SERVERS is the address of a broker.
package stories

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const patience = time.Minute // a bound on a hang

// story is a test with a topic of two partitions.
type story struct {
	*testing.T
	ctx   context.Context
	topic string
}

func newStory(t *testing.T) story {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	told := story{t, ctx, t.Name()}
	told.create(told.topic)
	return told
}

func (s story) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s story) client(options ...kgo.Opt) *kgo.Client {
	s.Helper()
	servers := kgo.SeedBrokers(os.Getenv("BOOTSTRAP_SERVERS"))
	client, err := kgo.NewClient(append(options, servers, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	s.check(err)
	s.Cleanup(client.Close)
	return client
}

func (s story) create(topic string) {
	s.Helper()
	request := kmsg.NewPtrCreateTopicsRequest()
	created := kmsg.NewCreateTopicsRequestTopic()
	created.Topic, created.NumPartitions, created.ReplicationFactor = topic, 2, 1
	request.Topics = append(request.Topics, created)
	response, err := request.RequestWith(s.ctx, s.client())
	s.check(err)
	s.check(kerr.ErrorForCode(response.Topics[0].ErrorCode))
}

// producer has a transactional id of the story.
func (s story) producer() *kgo.Client {
	return s.client(kgo.TransactionalID(s.topic))
}

func (s story) begin(producer *kgo.Client, values ...string) {
	s.Helper()
	s.check(producer.BeginTransaction())
	for _, value := range values {
		record := &kgo.Record{Topic: s.topic, Value: []byte(value)}
		s.check(producer.ProduceSync(s.ctx, record).FirstErr())
	}
}

func (s story) end(producer *kgo.Client, how kgo.TransactionEndTry) {
	s.Helper()
	s.check(producer.EndTransaction(s.ctx, how))
}

// values reads what a reader of the first partition sees up to the end that the isolation level allows.
func (s story) values(topic string, level kgo.IsolationLevel) []string {
	s.Helper()
	reader := s.client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(level),
		kgo.KeepControlRecords(),
	)
	defer reader.Close()
	end := s.endOffset(reader, topic, level)
	values := []string{}
	for next := int64(0); next < end; {
		fetched := reader.PollFetches(s.ctx)
		s.check(fetched.Err())
		for _, record := range fetched.Records() {
			next = record.Offset + 1
			if !record.Attrs.IsControl() {
				values = append(values, string(record.Value))
			}
		}
	}
	return values
}

func (s story) endOffset(client *kgo.Client, topic string, level kgo.IsolationLevel) int64 {
	s.Helper()
	request := kmsg.NewPtrListOffsetsRequest()
	if level == kgo.ReadCommitted() {
		request.IsolationLevel = 1
	}
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic, asked.Partitions = topic, append(asked.Partitions, partition)
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(s.ctx, client)
	s.check(err)
	s.check(kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode))
	return response.Topics[0].Partitions[0].Offset
}

func (s story) expect(values []string, expected ...string) {
	s.Helper()
	if !slices.Equal(values, expected) {
		s.Fatalf("%q instead of %q", values, expected)
	}
}

func TestACommittedTransactionIsRead(t *testing.T) {
	s := newStory(t)
	producer := s.producer()
	s.begin(producer, "a", "b")
	s.end(producer, kgo.TryCommit)
	s.begin(producer, "c")
	s.end(producer, kgo.TryCommit)
	s.expect(s.values(s.topic, kgo.ReadCommitted()), "a", "b", "c")
}

func TestAnAbortedTransactionIsNotRead(t *testing.T) {
	s := newStory(t)
	producer := s.producer()
	s.begin(producer, "a")
	s.end(producer, kgo.TryAbort)
	s.begin(producer, "b")
	s.end(producer, kgo.TryCommit)
	s.expect(s.values(s.topic, kgo.ReadCommitted()), "b")
	s.expect(s.values(s.topic, kgo.ReadUncommitted()), "a", "b")
}

func TestReadersWaitForAnOpenTransaction(t *testing.T) {
	s := newStory(t)
	producer := s.producer()
	s.begin(producer, "a")
	s.expect(s.values(s.topic, kgo.ReadCommitted()))
	s.expect(s.values(s.topic, kgo.ReadUncommitted()), "a")
	s.end(producer, kgo.TryCommit)
	s.expect(s.values(s.topic, kgo.ReadCommitted()), "a")
}

func TestAZombieIsFenced(t *testing.T) {
	s := newStory(t)
	zombie, heir := s.producer(), s.producer()
	s.begin(zombie, "a")
	s.begin(heir, "b")
	record := &kgo.Record{Topic: s.topic, Value: []byte("c")}
	err := zombie.ProduceSync(s.ctx, record).FirstErr()
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		s.Fatalf("the zombie was not fenced: %v", err)
	}
	s.end(heir, kgo.TryCommit)
	s.expect(s.values(s.topic, kgo.ReadCommitted()), "b")
}

func TestASessionCopiesExactlyOnce(t *testing.T) {
	s := newStory(t)
	target := s.topic + "-copy"
	s.create(target)
	source, expected := s.producer(), []string{}
	for number := range 10 {
		value := fmt.Sprint(number)
		s.begin(source, value)
		s.end(source, kgo.TryCommit)
		expected = append(expected, value)
	}
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Getenv("BOOTSTRAP_SERVERS")),
		kgo.TransactionalID(s.topic+"-copier"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeTopics(s.topic),
		kgo.ConsumerGroup(s.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	s.check(err)
	defer session.Close()
	aborted := false
	for copied := 0; copied < len(expected); {
		fetched := session.PollRecords(s.ctx, 3)
		s.check(fetched.Err())
		s.check(session.Begin())
		for _, record := range fetched.Records() {
			session.Produce(s.ctx, &kgo.Record{Topic: target, Value: record.Value}, nil)
		}
		how := kgo.TransactionEndTry(aborted) // the first transaction is aborted, and its records come again
		aborted = true
		committed, err := session.End(s.ctx, how)
		s.check(err)
		if committed {
			copied += fetched.NumRecords()
		}
	}
	s.expect(s.values(target, kgo.ReadCommitted()), expected...)
}
