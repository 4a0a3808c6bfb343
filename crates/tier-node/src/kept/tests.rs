use super::*;
use dunlin_tier::LmrId;
use proptest::prelude::*;

proptest! {
    #[test]
    fn entries_come_back_whole_and_any_bytes_are_read_without_a_panic(
        numbers in any::<[u64; 4]>(), small in any::<[u16; 3]>(), secret in any::<[u8; 16]>(), process in any::<u32>(),
        lengths in prop::collection::vec(0u64..1 << 40, 0..9), name in "[a-z]{0,9}", noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let [memory, generation, life, seed] = numbers;
        let (lineage, me) = (Lineage { memory, generation, seed }, NodeId(small[0]));
        let identity = entries::encode_identity(me, &name, &lineage, &lengths);
        prop_assert_eq!(entries::decode_identity(&identity), Some((me, name.clone(), lineage, lengths)));

        let known = Known { incarnation: memory, fences: life };
        let key = entries::node_key(KNOWN, me);
        prop_assert_eq!(entries::decode_known(&key[1..], &entries::known_value(known)), Some((me, known)));
        prop_assert_eq!(entries::decode_fences(&key[1..], &seed.to_le_bytes()), Some((me, seed)));
        let id = LmrId { node: me, slot: process, generation };
        prop_assert_eq!(entries::decode_settling(&entries::settling_key(id)[1..]), Some(id));

        let lived = (process, seed);
        let (key, value) = (session_key(me, small[1]), life_value(lived));
        prop_assert_eq!(decode_session(&key[1..], &value), Some(((me, small[1]), lived)));
        let given = KeptGiven { life: lived, extent: small[2] };
        prop_assert_eq!(KeptGiven::decode(&given.key()[1..], &[]), Some(given));
        let kept = KeptProcess { secret, life: lived, user: process, principal: name };
        prop_assert_eq!(KeptProcess::decode(&KeptProcess::key(&secret)[1..], &kept.value()), Some(kept));
        let kept = KeptNumber { secret, number: life, region: generation };
        let key = KeptNumber::key(PROCESS_HANDLE, &secret, life);
        prop_assert_eq!(KeptNumber::decode(&key[1..], &generation.to_le_bytes()), Some(kept));

        let (key, value) = noise.split_at(noise.len() / 2);
        let _ = (entries::decode_identity(&noise), entries::decode_known(key, value), decode_session(key, value));
        let _ = (KeptProcess::decode(key, value), KeptNumber::decode(key, value), KeptGiven::decode(key, value));
    }
}
