-- True when the connector, whose slot.name is "debezium", has everything in Kafka that was written before the switch. It moves on
-- with the rows that are written; if none are, write one.
select slot.confirmed_flush_lsn >= mark.lsn as confirmed
  from pg_replication_slots slot
 cross join public.outbox_switch mark
 where slot.slot_name = 'debezium';
