-- From version 1 to 2.

-- Which builds may run here. Those for version 1 may; they do not ask.
alter table holdfast.installation add column compatible_from integer not null default 1;
alter table holdfast.installation alter column compatible_from drop default;
