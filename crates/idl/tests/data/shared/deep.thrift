typedef string Key

service Root {
  hint: perf_goal = throughput, priority = low;

  Key root() (s_hint.polling = "event")
}
