-- True when nothing waits in holdfast's log any more: every committed event is in Kafka, or is a dead letter. Ask again until it is
-- true. Scheduled events whose time has not come are not counted.
select not exists (select from pg_catalog.generate_series(0, 3) segment where holdfast.unread(segment))
   and not exists (select from holdfast.parked) as published;
