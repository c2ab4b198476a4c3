-- Rows in every table of version 1, for the tests of upgrades. The words sort differently by most languages and by "C".

create temporary table word as
    select w, n from unnest(array['a', 'B', 'b', 'A', 'ä', 'Ä', 'z', 'Z', 'a b', 'a-b', 'ab', '_', 'ß', '日本', 'order-1', 'order-10', 'order-2']) with ordinality u (w, n);

do $$
begin
    for segment in 0..3 loop
        update holdfast.segments set current = segment;
        perform holdfast.append_one(w || segment, 'shop', 't.' || w, 'orders', w, null, '{"a": "1"}', convert_to(repeat(w, 1000), 'UTF8')) from word order by n;
        perform holdfast.append(array[segment || '-1', segment || '-2'], array['', ''], array['t', 't'], array['orders', 'mail'], array['', ''],
            null, null, array[null, ''::bytea], array[null, now() + interval '1 hour'], null);
    end loop;
end $$;
insert into holdfast.relay (name, seen_until) select w, now() from word;
update holdfast.lane set owner = 'ä', epoch = 7, lease_until = now() where lane = 1;
insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
    select n % 8, 'orders', w, n, 'record', now(), w, 'shop', 't', now() from word;
insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result)
    select c.w, s.w, e.w || i, 'orders', 0, i, '\x00', now(), 'handled' from word c, word s, word e, generate_series(1, 3) i;
insert into holdfast.retention (consumer) select w from word;
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash)
    select c.w, 'orders', k.w, nextval('holdfast.stored_place'), 'shop', k.w, 't', now(), '\x00' from word c, word k;
insert into holdfast.consumer_position (consumer, topic, partition, position, owner) select w, 'orders', n, n, w from word;
insert into holdfast.start (consumer, source, event_id, starts) select w, w, w, 1 from word;
insert into holdfast.consumer_type (consumer, type, node, seen_until) select w, w, w, now() from word;
insert into holdfast.watermark (consumer, entity, version) select w, w, n from word;
insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, owner, expires_at)
    select w, w, w, '\x00', 1, 'complete', 200, '{}', '', '\x00', gen_random_uuid(), now() + interval '1 day' from word;
insert into holdfast.idempotency_step (run, name, result) select n, w, '{"a": "\u0000"}' from word;
insert into holdfast.idempotency_request (run, scope, operation, key, route, principal, method, host, url, path_values, headers, body)
    select n, w, w, w, w, w, 'POST', 'h', '/', '{}', '{}', '' from word;
insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, created_at, expires_at, keep_until)
    select w, w, w, '\x00', now(), now(), now() from word;
insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, lane, place)
    select 'relay', '', 'refused', n % 2 = 0, w, 'shop', 't', 'orders', w, now(), sha256(''), n % 8, null from word
    union all
    select 'inbox', w, 'failed', n % 2 = 0, w, 'shop', 't', 'orders', w, now(), sha256(''), null, n from word;
insert into holdfast.letter_replay (name, filter, upto, by, reason) select w, '{}', n, w, '' from word;
insert into holdfast.letter_action (letter, action, by, reason) select id, 'replay', 'ann', '' from holdfast.letter;
drop table word;
